"""Who may call the control plane: the bearer token, and the name of the caller for the history.

Without a token the gateway listens on loopback only, and every user of the machine is trusted. A web page in
somebody's browser is not: it could submit code by a form, or under a name that resolves to 127.0.0.1. So then
requests must name this machine in `Host`, and must not come from another origin.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from urllib.parse import urlsplit

from fastapi import Request
from starlette.exceptions import HTTPException

from appliance.settings import is_loopback

MAX_ACTOR_CHARACTERS = 200


def access_check(token: str) -> Callable[[Request], None]:
    """Return the dependency that lets requests with the bearer token `token` pass.

    When it is empty: all that are of this machine.
    """
    return _token_check(token) if token else _check_is_local


def _check_is_local(request: Request) -> None:
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if not is_loopback(_hostname(f"//{host}")):
        raise HTTPException(
            403,
            f"This appliance has no token, so it answers at this machine's own names only, not as {host!r}. "
            "Ask for 127.0.0.1, or give it a token with APPLIANCE_TOKEN.",
        )
    if origin is not None and origin.partition("://")[2] != host:
        raise HTTPException(
            403, f"This appliance has no token, so it takes no requests from the web page of {origin!r}."
        )


def _hostname(url: str) -> str:
    """Return the host of a URL; empty when there is none to be read."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # Half an IPv6 address, for one.
        return ""


def _token_check(token: str) -> Callable[[Request], None]:
    def check(request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode("latin-1"), token.encode()
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
