"""The short way of HTTP for predictions, and how it meets the long one, over real sockets."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.asgi import Answer, Headers
from serving.model_server import rest_protocol, slow_clients
from serving.model_server.listeners import uvicorn_server

DEADLINE = 60.0
ENDS_A_HEAD = b"\r\n\r\n"
Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter, "App", Any], Awaitable[Any]]


class App:
    """Answers with what it was asked, and by which way; `/v1/models/wait` once `go` is set."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = asyncio.Event()

    async def answer(self, method: str, target: str, headers: Headers, body: bytes) -> Answer:
        self.asked.append(target)
        if target.endswith("wait"):
            await self.go.wait()
        if target.endswith("raise"):
            raise OSError("the disk is gone")
        return 200, b"short " + body[:100], [(b"x-length", str(len(body)).encode()), (b"x-note", b"100 %d")]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append(scope["path"])
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message["body"]
        headers = [(b"content-length", str(5 + len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"long " + body})


def with_server(client: Client) -> Any:
    """Run a client against a server in this process; return what it returns."""

    async def run() -> Any:
        listener = socket.create_server(("127.0.0.1", 0))
        app = App()
        server = uvicorn_server(app)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            return await asyncio.wait_for(client(reader, writer, app, server), DEADLINE)
        finally:
            writer.close()
            server.should_exit = True
            await serving

    return asyncio.run(run())


def post(path: str, body: bytes, *lines: bytes) -> bytes:
    head = b"POST /v1/models/%s HTTP/1.1\r\nHost: a\r\n" % path.encode()
    return (
        head
        + b"".join(line + b"\r\n" for line in (b"Content-Length: %d" % len(body), *lines))
        + b"\r\n"
        + body
    )


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return status line with headers, and the body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length"))
    return head, await reader.readexactly(int(length.split(b":")[1]))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_a_whole_request_is_answered_however_it_arrives(piece: int) -> None:
    async def client(reader: Any, writer: Any, app: App, server: Any) -> list[bytes]:
        bodies = []
        for body in (b"first", b"", b"x" * 300):
            request = post("m:predict?a=b", body)
            for start in range(0, len(request), piece):
                writer.write(request[start : start + piece])
                await writer.drain()
            head, answer = await read_answer(reader)
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"x-length: %d\r\n" % len(body) in head
            assert b"x-note: 100 %d\r\n" in head
            assert b"connection" not in head.lower()
            bodies.append(answer)
        assert app.asked == ["/v1/models/m:predict?a=b"] * 3
        return bodies

    assert with_server(client) == [b"short first", b"short ", b"short " + b"x" * 100]


POST = post("m", b"ab")
OFFER = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAEAAEAAAAIAAAAB")
CHUNKED = POST.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked").replace(
    b"ab", b"2\r\nab\r\n0\r\n\r\n"
)


@pytest.mark.parametrize(
    ("request_bytes", "answer"),
    [
        pytest.param(CHUNKED, b"long ab", id="chunked"),
        pytest.param(post("m", b"ab", b"Connection: close"), b"long ab", id="close"),
        pytest.param(POST.replace(b"HTTP/1.1", b"HTTP/1.0"), b"long ab", id="1.0"),
        pytest.param(POST.replace(b"POST", b"PUT"), b"long ab", id="method"),
        pytest.param(POST.replace(b"/v1/", b"/v2/"), b"long ab", id="path"),
        pytest.param(b"GET /v1/models/m HTTP/1.1\r\nHost: a\r\n\r\n", b"long ", id="get"),
    ],
)
def test_other_requests_go_the_long_way(request_bytes: bytes, answer: bytes) -> None:
    async def client(reader: Any, writer: Any, app: App, server: Any) -> bytes:
        writer.write(request_bytes)
        return (await read_answer(reader))[1]

    assert with_server(client) == answer


@pytest.mark.parametrize("piece", [1, 50, 1000])
def test_an_offer_of_another_protocol_is_not_taken(piece: int) -> None:
    """As Java's HttpClient makes it in each request."""

    async def client(reader: Any, writer: Any, app: App, server: Any) -> list[bytes]:
        bodies = (
            post("m", b"first", *OFFER),
            post("m", b"", *OFFER),
            post("m", b"3"),
            CHUNKED.replace(b"Host: a", b"\r\n".join(OFFER)),
            post("m", b"5", *OFFER),
        )
        requests = b"".join(bodies)
        for start in range(0, len(requests), piece):
            writer.write(requests[start : start + piece])
            await writer.drain()
        return [(await read_answer(reader))[1] for _ in bodies]

    *answers, last = with_server(client)
    assert answers == [b"short first", b"short ", b"short 3", b"long ab"]
    assert last in (b"short 5", b"long 5")  # The one before may still be under way.


def test_a_client_that_asks_whether_to_go_on_is_told_so() -> None:
    async def client(reader: Any, writer: Any, app: App, server: Any) -> None:
        head, body = post("m", b"ab", b"Expect: 100-continue").split(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await read_answer(reader))[1] == b"long ab"

    with_server(client)


def test_requests_sent_at_once_are_answered_in_their_order() -> None:
    async def client(reader: Any, writer: Any, app: App, server: Any) -> list[bytes]:
        get = b"GET /v1/models/m HTTP/1.1\r\nHost: a\r\n\r\n"
        writer.write(post("m", b"1") + post("wait", b"2") + post("m", b"3") + get + post("m", b"4") + get)
        first = (await read_answer(reader))[1]
        await until(lambda: len(app.asked) == 2)
        app.go.set()
        return [first, *[(await read_answer(reader))[1] for _ in range(5)]]

    answers = with_server(client)
    assert answers == [b"short 1", b"short 2", b"long 3", b"long ", b"long 4", b"long "]


def test_what_an_application_raises_is_a_500_and_the_connection_goes_on(caplog: Any) -> None:
    async def client(reader: Any, writer: Any, app: App, server: Any) -> None:
        writer.write(post("raise", b""))
        head, body = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 500 ")
        assert body == b"Internal Server Error"
        writer.write(post("m", b"1"))
        assert (await read_answer(reader))[1] == b"short 1"

    with_server(client)
    assert "the disk is gone" in caplog.text


def test_a_request_in_flight_is_answered_when_the_server_stops() -> None:
    async def client(reader: Any, writer: Any, app: App, server: Any) -> None:
        writer.write(post("wait", b"1"))
        await until(lambda: bool(app.asked))
        (connection,) = server.server_state.connections
        server.should_exit = True
        await until(lambda: not connection.cycle.keep_alive)
        app.go.set()
        head, body = await read_answer(reader)
        assert b"connection: close\r\n" in head
        assert body == b"short 1"
        assert await reader.read() == b""

    with_server(client)


@pytest.mark.parametrize("path", ["m", "wait"])
def test_a_request_that_is_arriving_is_answered_when_the_server_stops(path: str) -> None:
    async def client(reader: Any, writer: Any, app: App, server: Any) -> None:
        app.go.set()
        request = post(path, b"first")
        writer.write(request[:-3])
        await until(lambda: any(connection._parts for connection in server.server_state.connections))
        (connection,) = server.server_state.connections
        server.should_exit = True
        await until(lambda: connection._is_last)
        writer.write(request[-3:])
        head, body = await read_answer(reader)
        assert b"connection: close\r\n" in head
        assert body == b"short first"
        assert await reader.read() == b""

    with_server(client)


def test_a_client_that_leaves_before_its_answer_harms_nobody() -> None:
    async def client(reader: Any, writer: Any, app: App, server: Any) -> None:
        writer.write(post("wait", b"1"))
        await until(lambda: bool(app.asked))
        writer.transport.abort()
        await until(lambda: not server.server_state.connections)
        app.go.set()
        await until(lambda: not server.server_state.tasks)

    with_server(client)


def test_answers_do_not_pile_up_for_a_client_that_does_not_read() -> None:
    async def client(reader: Any, writer: Any, app: App, server: Any) -> None:
        writer.transport.pause_reading()
        ends = post("m", b"a")
        await until(lambda: bool(server.server_state.connections))
        (connection,) = server.server_state.connections
        connection.transport.set_write_buffer_limits(high=0)
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        while not connection.flow.write_paused:
            writer.write(ends * 1000)
            await asyncio.sleep(0)
        short = len(app.asked)
        await until(lambda: connection.transport.is_reading() is False)
        assert len(app.asked) <= short + 1
        assert connection.transport.get_write_buffer_size() < 1_000_000

    with_server(client)


def test_a_connection_without_a_next_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def client(reader: Any, writer: Any, app: App, server: Any) -> None:
        writer.write(post("m", b"1"))
        await read_answer(reader)
        (connection,) = server.server_state.connections
        now = asyncio.get_running_loop().time()
        slow_clients.check_all({connection}, now + 70)
        writer.write(post("m", b"2"))
        assert (await read_answer(reader))[1] == b"short 2"
        slow_clients.check_all({connection}, now + 200)
        assert await reader.read() == b""

    with_server(client)


def test_a_head_that_comes_again_is_not_parsed_again() -> None:
    class NoParser:
        def feed_data(self, data: bytes) -> None:
            raise AssertionError(f"parsed: {data!r}")

    async def client(reader: Any, writer: Any, app: App, server: Any) -> None:
        writer.write(post("again", b"ab"))
        head, answer = await read_answer(reader)
        assert answer == b"short ab"
        (connection,) = server.server_state.connections
        connection.parser = NoParser()
        for body in (b"cd", ENDS_A_HEAD[:2], b"ef"):
            writer.write(post("again", body))
            assert await read_answer(reader) == (head, b"short " + body)
        assert app.asked == ["/v1/models/again"] * 4

    with_server(client)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"\r\n" + POST[: -len(b"ab")], id="empty line before it"),
        pytest.param(POST[: -len(b"ab")].replace(b"\r\n", b"\n"), id="other ends of lines"),
        pytest.param(POST[: -len(b"ab")].replace(b"Host: a", b"Host: a\r\n b"), id="folded line"),
        pytest.param(post("m", b"ab", b"X: " + b"y" * 2048)[: -len(b"ab")], id="long"),
    ],
)
def test_a_head_that_could_be_read_in_another_way_is_parsed_every_time(head: bytes) -> None:
    async def client(reader: Any, writer: Any, app: App, server: Any) -> None:
        writer.write(head + b"ab")
        await reader.readuntil(ENDS_A_HEAD)
        assert head not in rest_protocol._known_heads

    with_server(client)


def test_known_heads_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def client(reader: Any, writer: Any, app: App, server: Any) -> None:
        for number in range(8):
            writer.write(post(f"m{number}", b"1"))
            assert (await read_answer(reader))[1] == b"short 1"
            assert 1 <= len(rest_protocol._known_heads) <= 3

    rest_protocol._known_heads.clear()
    monkeypatch.setattr(rest_protocol, "_MOST_KNOWN", 3)
    with_server(client)


REQUESTS = [
    post("m", b"ab"),
    post("m", b"cd"),
    post("m", ENDS_A_HEAD[:2]),
    post("m", ENDS_A_HEAD),
    post("m", post("m", b"ab")),
    post("wait", b"ab"),
    post("m", b"", *OFFER),
    post("m", b"ab", *OFFER),
    CHUNKED,
    POST.replace(b"/v1/", b"/v2/"),
    b"GET /v1/models/m HTTP/1.1\r\nHost: a\r\n\r\n",
]
BODIES = [b"ab", b"cd", b"\r\n", ENDS_A_HEAD, post("m", b"ab"), b"ab", b"", b"ab", b"ab", b"ab", b""]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(REQUESTS) - 1), min_size=1, max_size=8), st.data())
def test_requests_are_the_same_however_they_are_cut(chosen: list[int], data: st.DataObject) -> None:
    """Whole, in pieces or several in one: whether a head is known makes no difference."""
    sent = b"".join(REQUESTS[index] for index in chosen)
    starts = [0]
    for index in chosen:
        starts.append(starts[-1] + len(REQUESTS[index]))
    cuts = data.draw(st.sets(st.sampled_from([*starts, *range(len(sent))]), max_size=8))
    places = [0, *sorted(cuts - {0, len(sent)}), len(sent)]

    async def client(reader: Any, writer: Any, app: App, server: Any) -> list[bytes]:
        app.go.set()
        await until(lambda: bool(server.server_state.connections))
        (connection,) = server.server_state.connections
        for start, end in pairwise(places):
            connection.data_received(sent[start:end])
            await asyncio.sleep(0)
        return [(await read_answer(reader))[1].split(b" ", 1)[1] for _ in chosen]

    assert with_server(client) == [BODIES[index][:100] for index in chosen]
