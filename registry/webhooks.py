"""Sends what is in the outbox to the webhooks: signed, with limits on everything, again until it arrives.

A receiver gets a POST of JSON with these headers:

| header | content |
| --- | --- |
| `Appliance-Event` | the kind, `label.moved` for instance |
| `Appliance-Delivery` | the delivery's id, the same at every attempt: by it a receiver tells a repetition |
| `Appliance-Signature` | `t=<time>,v1=<hex>`: Unix time, HMAC-SHA256 of `<time>.<body>` with the secret |

Any answer of 200 to 299 says that it arrived. Redirects are not followed, and proxies of the environment are
not used.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import socket
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from registry.addresses import AddressRefused, choose_address
from registry.errors import RegistryError
from registry.outbox import Letter
from registry.webhook_operations import WebhookOperations

if TYPE_CHECKING:
    import httpx

ATTEMPT_SECONDS = 15.0
"""How long one attempt may take in all."""
CONNECT_SECONDS = 5.0
SENT_AT_ONCE = 16
MAX_BODY_BYTES = 256 * 1024
"""A longer event is told without its gate report and details."""
SHOWN_ANSWER_BYTES = 200
"""How much of a refusal is read."""
LONGEST_PAUSE_SECONDS = 1.0
"""Between two looks at the outbox: other processes write into it too."""
FORGET_EVERY_SECONDS = 3600.0
TOLERANCE_SECONDS = 300.0
"""How old a signature may be when it is checked."""

_TIME = re.compile(r"t=(?P<at>\d{1,15}),")

log = logging.getLogger(__name__)


def sign(secret: str, body: bytes, at: int) -> str:
    """Return the value of the header `Appliance-Signature`."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256)
    return f"t={at},v1={digest.hexdigest()}"


def verify(secret: str, body: bytes, signature: str, *, now: float | None = None) -> bool:
    """Return whether `signature` is that of `body`, made with `secret` in the last five minutes.

    Receivers may call it, or do the same in their own language.
    """
    found = _TIME.match(signature)
    if found is None or not signature.isascii():
        return False
    at = int(found["at"])
    fresh = abs((time.time() if now is None else now) - at) <= TOLERANCE_SECONDS
    return hmac.compare_digest(sign(secret, body, at), signature) and fresh


def body_of(letter: Letter) -> bytes:
    """Return what is sent of an event."""
    event = {**letter.event, "delivery": letter.delivery}
    body = json.dumps(event, ensure_ascii=False).encode()
    if len(body) > MAX_BODY_BYTES:
        short = {**event, "gate_report": None, "details": {}, "shortened": True}
        short["reason"] = str(event["reason"])[: MAX_BODY_BYTES // 16]
        body = json.dumps(short, ensure_ascii=False).encode()
    return body


class WebhookDispatcher:
    """Sends deliveries, in a thread of its own with an event loop of its own.

    Any number of processes may run one on the same database: each delivery is leased to one of them.
    """

    def __init__(self, registry: WebhookOperations, *, allow_private: bool = False) -> None:
        """Take the registry; `allow_private`: whether receivers may be on loopback and private networks."""
        self._registry, self._allow_private = registry, allow_private
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="webhooks", daemon=True)
        self._runs = threading.Event()
        self._tasks: dict[asyncio.Task[None], int] = {}

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()
        self._runs.wait()

    def stop(self) -> None:
        """Stop sending, and return when nothing is under way any more; what was is sent again later."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    async def _run(self) -> None:
        import httpx

        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._runs.set()
        limits = httpx.Limits(max_connections=SENT_AT_ONCE, max_keepalive_connections=0)
        timeout = httpx.Timeout(ATTEMPT_SECONDS, connect=CONNECT_SECONDS)
        # The authorities that come with httpx, and those of the system or of SSL_CERT_FILE: one's own, say.
        tls = httpx.create_ssl_context(trust_env=False)
        tls.load_default_certs()
        options: dict[str, Any] = {
            "follow_redirects": False,
            "trust_env": False,
            "timeout": timeout,
            "verify": tls,
        }
        async with httpx.AsyncClient(limits=limits, **options) as client:
            try:
                await self._dispatch(client)
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _dispatch(self, client: httpx.AsyncClient) -> None:
        forget_at = time.monotonic()
        stopping = asyncio.create_task(self._stopping.wait())
        while not self._stopping.is_set():
            pause = LONGEST_PAUSE_SECONDS
            try:
                if time.monotonic() >= forget_at:
                    await asyncio.to_thread(self._registry.forget_deliveries)
                    forget_at = time.monotonic() + FORGET_EVERY_SECONDS
                pause = await self._start_what_is_due(client)
            except RegistryError as error:
                # The database is away: what is in it stays there, and is sent when it is back.
                log.warning("outbox_unreachable", extra={"error": str(error)})
            except Exception:
                log.exception("outbox_failed")
            # A receiver that has answered may be told the next thing at once.
            news = [stopping, *self._tasks]
            await asyncio.wait(news, timeout=pause, return_when=asyncio.FIRST_COMPLETED)

    async def _start_what_is_due(self, client: httpx.AsyncClient) -> float:
        """Start to send all that is due and may be sent now; return for how long there is nothing more."""
        while len(self._tasks) < SENT_AT_ONCE and not self._stopping.is_set():
            letter = await asyncio.to_thread(self._registry.claim_delivery, self._busy())
            if letter is None:
                return await asyncio.to_thread(
                    self._registry.seconds_until_due, LONGEST_PAUSE_SECONDS, self._busy()
                )
            task = asyncio.create_task(self._deliver(client, letter))
            self._tasks[task] = letter.webhook
            task.add_done_callback(self._tasks.pop)
        return LONGEST_PAUSE_SECONDS

    def _busy(self) -> tuple[int, ...]:
        return tuple(self._tasks.values())

    async def _deliver(self, client: httpx.AsyncClient, letter: Letter) -> None:
        started = time.monotonic()
        try:
            error = await self._attempt(client, letter)
        except asyncio.CancelledError:
            # Without a thread, for the loop is ending. Were it to fail, the lease would run out by itself.
            self._registry.release_delivery(letter)
            raise
        try:
            await asyncio.to_thread(self._registry.settle_delivery, letter, error)
        except RegistryError as problem:
            # The lease runs out, and it is sent once more.
            log.warning("delivery_not_noted", extra={"delivery": letter.delivery, "error": str(problem)})
            return
        fields = {"delivery": letter.delivery, "webhook": letter.webhook, "kind": letter.event["kind"]}
        event = "webhook_failed" if error else "webhook_delivered"
        seconds = time.monotonic() - started
        log.info(event, extra={**fields, "attempts": letter.attempts, "error": error, "seconds": seconds})

    async def _attempt(self, client: httpx.AsyncClient, letter: Letter) -> str:
        """Send once. Return an empty text when it has arrived, else why not."""
        import httpx

        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                return await self._post(client, letter)
        except TimeoutError:
            return f"no answer within {ATTEMPT_SECONDS:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, AddressRefused, socket.gaierror, UnicodeError) as error:
            return f"{type(error).__name__}: {error}"

    async def _post(self, client: httpx.AsyncClient, letter: Letter) -> str:
        parts = urlsplit(letter.url)
        host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]
        address = await self._resolve(host, port)
        netloc = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        body, at = body_of(letter), int(time.time())
        headers = {
            "Host": parts.netloc,
            "Content-Type": "application/json",
            "User-Agent": "estimator-appliance",
            "Appliance-Event": letter.event["kind"],
            "Appliance-Delivery": str(letter.delivery),
            "Appliance-Signature": sign(letter.secret, body, at),
        }
        request = client.build_request(
            "POST",
            urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, "")),
            content=body,
            headers=headers,
            # The certificate must be that of the name, though the address is what is connected to.
            extensions={"sni_hostname": host},
        )
        answer = await client.send(request, stream=True)
        try:
            return "" if answer.is_success else await _refusal(answer)
        finally:
            await answer.aclose()

    async def _resolve(self, host: str, port: int) -> str:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]) for entry in found]
        return choose_address(host, addresses, allow_private=self._allow_private)


async def _refusal(answer: httpx.Response) -> str:
    """Return what a receiver answered, as far as it is worth reading."""
    if answer.is_redirect:
        to = answer.headers.get("location", "")[:SHOWN_ANSWER_BYTES]
        return f"answered {answer.status_code}, a redirect to {to!r}: not followed"
    shown = b""
    async for chunk in answer.aiter_raw():
        shown += chunk
        if len(shown) >= SHOWN_ANSWER_BYTES:
            break
    text = " ".join(shown[:SHOWN_ANSWER_BYTES].decode("utf-8", "replace").split())
    return f"answered {answer.status_code}" + (f": {text}" if text else "")
