"""The REST application as servers ask it: over ASGI, at once, and many requests at a time."""

from __future__ import annotations

import asyncio
import gzip

from serving.dataplane import DataPlane
from serving.dispatch import Dispatcher
from serving.manager import ModelManager
from serving.metrics import Metrics
from serving.model_server.rest import RESTApp
from tests.serving.model_server.conftest import PREDICT


async def asgi(
    app: RESTApp, method: str, path: str, chunks: list[bytes], headers: dict[str, str]
) -> tuple[int, dict, bytes]:
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages.append({"type": "http.request", "body": b""})
    sent: list[dict] = []

    async def receive() -> dict:
        return messages.pop(0)

    async def send(message: dict) -> None:
        sent.append(message)

    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": encoded}
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


def test_a_body_may_come_in_pieces_and_packed(app: RESTApp) -> None:
    packed = gzip.compress(b'{"instances": [2]}')
    answer = asyncio.run(asgi(app, "POST", PREDICT, [packed[:9], packed[9:]], {"content-encoding": "gzip"}))
    assert (answer[0], answer[2]) == (200, b'{"predictions":[3.0]}')
    assert answer[1][b"content-type"] == b"application/json"


def test_a_body_that_cannot_be_unpacked_counts_as_empty(app: RESTApp) -> None:
    answer = asyncio.run(asgi(app, "POST", PREDICT, [b"no gzip"], {"content-encoding": "gzip"}))
    assert (answer[0], answer[2]) == (400, b'{"error":"JSON Parse error: The document is empty"}')


def test_a_body_over_the_limit_is_refused(serving: ModelManager) -> None:
    app = RESTApp(DataPlane(serving), max_body_bytes=10)
    status, _, body = asyncio.run(asgi(app, "POST", PREDICT, [b"123456", b"78901"], {}))
    assert (status, b"larger than 10 bytes" in body) == (413, True)


def test_other_paths_and_preflights_are_answered_as_the_http_library_does(app: RESTApp) -> None:
    assert asyncio.run(asgi(app, "GET", "/", [], {}))[0] == 404
    assert asyncio.run(asgi(app, "OPTIONS", PREDICT, [], {"origin": "https://a"}))[0] == 200
    assert asyncio.run(asgi(app, "OPTIONS", PREDICT, [], {}))[0] == 400


def test_what_is_answered_at_once_is_answered_and_counted_like_the_rest(serving: ModelManager) -> None:
    metrics = Metrics()
    app = RESTApp(DataPlane(serving), metrics=metrics, max_body_bytes=64)
    body = b'{"instances": [1.0]}'
    assert app.answer_at_once(PREDICT, [], body) is None  # Nobody knows yet how long it takes.

    async def ask_until_known() -> None:
        while app.answer_at_once(PREDICT, [], body) is None:
            await app.answer("POST", PREDICT, [], body)

    asyncio.run(ask_until_known())
    before = dict(metrics._counts)
    for sent in (body, b'{"instances": ["a"]}', b'{"instances": [1.0, ', b'{"inputs": {"z": [1]}}'):
        at_once = app.answer_at_once(PREDICT, [], sent)
        assert at_once == asyncio.run(app.answer("POST", PREDICT, [], sent))
    counted = {key[1]: number - before.get(key, 0) for key, number in metrics._counts.items()}
    assert counted == {"OK": 2, "INVALID_ARGUMENT": 6}
    assert app.answer_at_once(PREDICT, [(b"content-encoding", b"GZIP")], body) is None
    assert app.answer_at_once(PREDICT, [], body + b" " * 64) is None
    assert app.answer_at_once("/v1/models/half_plus_two", [], body) is None


def test_a_slow_request_does_not_block_the_others(serving: ModelManager) -> None:
    """The slow one is still running when the quick one, sent after it, has been answered."""
    app = RESTApp(DataPlane(serving), dispatcher=Dispatcher(2))

    async def race() -> list[str]:
        order: list[str] = []

        async def send(path: str, body: bytes, name: str) -> None:
            status, _ = await app.respond("POST", path, body)
            assert status == 200
            order.append(name)

        slow = asyncio.create_task(send("/v1/models/slow:predict", b'{"inputs": 1.0}', "slow"))
        await asyncio.sleep(0)
        await send(PREDICT, b'{"instances": [1]}', "quick")
        await slow
        return order

    assert asyncio.run(race()) == ["quick", "slow"]
