"""The pool of HTTP connections, against real sockets that misbehave."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from serving.gateway.http_pool import HTTPPool, UpstreamUnavailable

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def with_upstream(
    answer: Answer, use: Callable[[HTTPPool], Awaitable[None]], timeout_seconds: float = 60.0
) -> int:
    """Run `use` against a server that gives connections to `answer`; return how many it got."""
    connections: list[asyncio.Task[None] | None] = []

    async def main() -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(asyncio.current_task())
            await answer(reader, writer)
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        pool = HTTPPool(f"http://127.0.0.1:{port}", timeout_seconds=timeout_seconds)
        try:
            await use(pool)
        finally:
            pool.close()
            server.close()
            await asyncio.gather(*(task for task in connections if task))

    asyncio.run(main())
    return len(connections)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(size)


def test_a_connection_is_kept_for_the_next_request():
    seen = []

    async def answer(reader, writer):
        for _ in range(3):
            seen.append(await read_request(reader))
            writer.write(OK)

    async def use(pool):
        for body in (b"a", b"bb", b""):
            response = await pool.request(b"POST", b"/v1/models/m:predict", [(b"x-trace", b"7")], body)
            assert (response.status, response.body) == (200, b"{}")
            assert (b"content-type", b"application/json") in response.headers

    assert with_upstream(answer, use) == 1
    assert seen[1].startswith(b"POST /v1/models/m:predict HTTP/1.1\r\nhost: 127.0.0.1:")
    assert seen[1].endswith(b"\r\nx-trace: 7\r\ncontent-length: 2\r\n\r\nbb")


def test_a_kept_connection_that_died_is_replaced_unseen():
    async def answer(reader, writer):
        await read_request(reader)
        writer.write(OK)  # ... and hangs up, though it promised to keep the connection

    async def use(pool):
        for _ in range(3):
            assert (await pool.request(b"GET", b"/", [], b"")).status == 200

    assert with_upstream(answer, use) == 3


def test_a_fresh_connection_that_breaks_is_an_error_and_no_repetition():
    async def answer(reader, writer):
        await read_request(reader)
        writer.write(OK[:-1])

    async def use(pool):
        with pytest.raises(UpstreamUnavailable, match="hung up"):
            await pool.request(b"GET", b"/", [], b"")

    assert with_upstream(answer, use) == 1


def test_chunked_answers_are_put_together():
    async def answer(reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await writer.drain()
        writer.write(b"2\r\nde\r\n0\r\n\r\n")
        await reader.read()

    async def use(pool):
        response = await pool.request(b"GET", b"/", [], b"")
        assert (response.status, response.body) == (404, b"abcde")

    with_upstream(answer, use)


def test_what_is_no_http_is_an_error():
    async def answer(reader, writer):
        await read_request(reader)
        writer.write(b"220 smtp ready\r\n")

    async def use(pool):
        with pytest.raises(UpstreamUnavailable, match="sent no HTTP"):
            await pool.request(b"GET", b"/", [], b"")

    with_upstream(answer, use)


def test_no_answer_in_time_is_a_timeout():
    async def answer(reader, writer):
        await reader.read()

    async def use(pool):
        with pytest.raises(TimeoutError):
            await pool.request(b"GET", b"/", [], b"")

    with_upstream(answer, use, timeout_seconds=0.05)


def test_nobody_there_is_said_with_the_address():
    async def use() -> None:
        pool = HTTPPool("http://127.0.0.1:1")
        with pytest.raises(UpstreamUnavailable, match=r"Cannot connect to 127\.0\.0\.1:1"):
            await pool.request(b"GET", b"/", [], b"")

    asyncio.run(use())


def test_a_url_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"http://127\.0\.0\.1:8501"):
        HTTPPool("localhost:8501")
