"""Who may call the control plane: the bearer token, and the name of the caller for the history."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from fastapi import Request
from starlette.exceptions import HTTPException

MAX_ACTOR_CHARACTERS = 200


def token_check(token: str) -> Callable[[Request], None]:
    """Return the dependency that lets requests with the bearer token `token` pass; all, when it is empty."""

    def check(request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if not token or (
            scheme.lower() == "bearer"
            and hmac.compare_digest(given.strip().encode("latin-1"), token.encode())
        ):
            return
        problem = "The token is wrong" if given else "A token is needed"
        raise HTTPException(
            401,
            f"{problem}: send the header 'Authorization: Bearer <token>'; "
            "the client and the command take it from APPLIANCE_TOKEN.",
            headers={"WWW-Authenticate": "Bearer"},
        )

    return check


def actor_of(request: Request) -> str:
    """Return who acts, as the caller says it: everyone who holds the one token is trusted alike."""
    # Starlette reads header values as Latin-1; the client sends UTF-8.
    sent = request.headers.get("appliance-actor", "").encode("latin-1").decode("utf-8", "replace")
    given = sent.strip()[:MAX_ACTOR_CHARACTERS]
    return given or f"somebody at {request.client.host if request.client else 'unknown'}"
