"""Clients that send too slowly, or headers without end, over real sockets."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from serving.model_server import slow_clients
from serving.model_server.listeners import uvicorn_server
from serving.model_server.rest import RESTApp

HEAD = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n"
DEADLINE = 60.0
Late = Callable[..., Awaitable[None]]
"""(seconds, condition on the connection): checks, once it holds, as if so many seconds had gone by."""
Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Late], Awaitable[Any]]


class NoModels:
    """A data plane that answers nothing: no request here is whole."""

    def predict(self, *arguments: object) -> None:
        raise AssertionError("a request that was not whole reached the model")


def with_server(client: Client) -> Any:
    """Run a client against a REST server in this process; return what it returns."""

    async def run() -> Any:
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn_server(RESTApp(NoModels()))
        serving = asyncio.create_task(server.serve(sockets=[listener]))

        async def late(seconds: float, condition: Callable[[Any], bool] = lambda connection: True) -> None:
            connections = server.server_state.connections
            while not all(condition(connection) for connection in connections):
                await asyncio.sleep(0)
            slow_clients.check_all(connections, asyncio.get_running_loop().time() + seconds)

        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            return await asyncio.wait_for(client(reader, writer, late), DEADLINE)
        finally:
            writer.close()
            server.should_exit = True
            await serving

    return asyncio.run(run())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that waits for next to no time."""
    monkeypatch.setattr(slow_clients, "READ_SECONDS", 0.1)
    monkeypatch.setattr(slow_clients, "BYTES_PER_SECOND", 1e6)
    monkeypatch.setattr(slow_clients, "SILENT_SECONDS", 0.1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("sent", [HEAD[:30], HEAD, HEAD + b"\r\n", HEAD + b'\r\n{"instances"'])
def test_a_request_that_does_not_arrive_in_time_is_answered_408_and_closed(sent: bytes) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: Late) -> bytes:
        writer.write(sent)
        return await reader.read()

    answer = with_server(client)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b'{"error":"The request did not arrive within ' in answer


def test_a_large_request_has_longer_to_arrive() -> None:
    """A second more for each 500 bytes: 50,000 of them are not overdue after 100 seconds, but after 200."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: Late) -> bytes:
        writer.write(HEAD.replace(b"20", b"999999") + b"\r\n" + b"x" * 50_000)
        await late(100, lambda connection: connection._received > 50_000)
        assert not reader.at_eof()
        await late(200)
        return await reader.readuntil(b"\r\n")

    assert with_server(client) == b"HTTP/1.1 408 Request Timeout\r\n"


@pytest.mark.usefixtures("impatient")
def test_a_connection_that_says_nothing_is_closed_without_a_word() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: Late) -> bytes:
        return await reader.read()

    assert with_server(client) == b""


def test_a_connection_between_two_requests_is_left_open() -> None:
    """A client may keep its connection while it has nothing to ask."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: Late) -> list[bytes]:
        answers = []
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
            answers.append(head.splitlines()[0])
            await late(1000)
        return answers

    assert with_server(client) == [b"HTTP/1.1 404 Not Found"] * 2


def test_headers_without_end_are_answered_431() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: Late) -> bytes:
        writer.write(HEAD + b"X: " + b"y" * slow_clients.MAX_HEAD_BYTES + b"\r\n")
        return await reader.readuntil(b"\r\n")

    assert with_server(client) == b"HTTP/1.1 431 Request Header Fields Too Large\r\n"


def test_a_request_cut_off_by_its_client_never_reaches_the_model() -> None:
    """Though what has arrived would be whole JSON."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: Late) -> bytes:
        writer.write(HEAD.replace(b"20", b"99") + b'\r\n{"instances": [1]}')
        writer.write_eof()
        return await reader.read()

    assert with_server(client) == b""
