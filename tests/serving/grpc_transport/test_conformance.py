"""The rules of HTTP/2 and gRPC, over memory, with the h2 package as the other side."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from typing import Any

import h2.events
import h2.settings
import pytest

from serving.grpc_transport import Limits
from serving.grpc_transport.frames import ErrorCode
from tests.serving.grpc_transport.support import DEADLINE, HEADERS, Client, Echo, echo_server, framed


def over_memory(
    check: Callable[[Client, Echo], Awaitable[None]], limits: Limits | None = None, **options: Any
) -> None:
    """Run a check with a client of a new server."""

    async def run() -> None:
        server, echo = echo_server(limits)
        await check(Client(server, **options), echo)
        for connection in list(server.connections):
            connection.connection_lost(None)

    asyncio.run(run())


def test_a_unary_call_is_answered_in_one_write() -> None:
    async def check(client: Client, echo: Echo) -> None:
        stream = client.call(framed(b"hello"))
        answer = client.answers[stream]
        assert answer.headers[":status"] == "200"
        assert answer.headers["content-type"] == "application/grpc"
        assert answer.headers["grpc-accept-encoding"] == "identity,deflate,gzip"
        assert (answer.data, answer.trailers) == (framed(b"hello"), {"grpc-status": "0"})
        assert answer.ended
        assert not client.connection._streams.open
        assert not client.connection._streams.tasks

    over_memory(check)


def test_errors_of_handlers_have_status_text_and_metadata() -> None:
    async def check(client: Client, echo: Echo) -> None:
        answer = await client.answer(client.call(framed(b"abort")))
        assert answer.headers["grpc-status"] == "5"
        assert answer.headers["grpc-message"] == "100%25 %C3%A9%0A"
        assert (answer.headers["k"], answer.headers["k-bin"], answer.data) == ("v", "AP8", b"")
        answer = await client.answer(client.call(framed(b"fail")))
        assert answer.headers["grpc-message"] == "Unexpected <class 'ValueError'>: no"
        assert answer.status == "2"
        answer = await client.answer(client.call(framed(b"x"), "Written"))
        assert (answer.data, answer.trailers["grpc-status"]) == (framed(b"x"), "11")
        assert answer.trailers["grpc-message"] == "after one"

    over_memory(check)


def test_calls_that_cannot_be_made_are_answered_with_their_end() -> None:
    async def check(client: Client, echo: Echo) -> None:
        answer = await client.answer(client.call(framed(b""), "Nothing"))
        assert (answer.status, answer.headers["grpc-message"]) == ("12", "Method not found!")
        answer = await client.answer(client.call(framed(b""), more=[("grpc-encoding", "br")]))
        assert answer.status == "12"
        assert answer.headers["grpc-accept-encoding"] == "identity,deflate,gzip"
        answer = await client.answer(client.call(framed(b""), content_type="text/html"))
        assert answer.headers == {":status": "415"}
        answer = await client.answer(client.call(framed(b""), more=[("grpc-timeout", "0m")]))
        assert (answer.status, answer.headers["grpc-message"]) == ("4", "Deadline Exceeded")
        for body, text in (
            (b"", "No message for a method that takes one"),
            (framed(b"a") + framed(b"b"), "More than one message for a method that takes one"),
            (framed(b"abc")[:-1], "The last message is not complete"),
            (framed(b"abc", 1), "Compression bit set but no encoding configured"),
            (framed(b"abc", 9), "Invalid message flag 9"),
        ):
            answer = await client.answer(client.call(body))
            assert (answer.status, answer.headers["grpc-message"]) == ("13", text)
        assert (await client.answer(client.call(framed(b"a")))).status == "0"

    over_memory(check)


def test_malformed_requests_reset_their_stream_and_no_other() -> None:
    async def check(client: Client, echo: Echo) -> None:
        for replaced in ({"method": "GET"}, {"scheme": ""}, {"te": "gzip"}):
            answer = await client.answer(client.call(framed(b"a"), **replaced))
            assert answer.reset == ErrorCode.PROTOCOL_ERROR
        answer = await client.answer(client.call(framed(b"a"), more=[("content-length", "7")]))
        assert answer.reset == ErrorCode.PROTOCOL_ERROR
        answer = await client.answer(client.call(framed(b"a"), more=[("content-length", "6")]))
        assert answer.status == "0"

    over_memory(check)


def test_messages_may_be_compressed() -> None:
    async def check(client: Client, echo: Echo) -> None:
        body = framed(gzip.compress(b"a" * 1000), 1)
        answer = await client.answer(client.call(body, more=[("grpc-encoding", "gzip")]))
        assert answer.data == framed(b"a" * 1000)
        body = framed(gzip.compress(b"a" * 1001), 1)
        answer = await client.answer(client.call(body, more=[("grpc-encoding", "gzip")]))
        assert answer.status == "8"

    over_memory(check, Limits(max_receive=1000))


def test_messages_over_the_limits_are_refused() -> None:
    async def check(client: Client, echo: Echo) -> None:
        stream = client.call(None)
        client.h2.send_data(stream, b"\x00" + (1001).to_bytes(4))  # The length alone is enough.
        client.exchange()
        answer = await client.answer(stream)
        assert answer.headers["grpc-message"] == "SERVER: Received message larger than max (1001 vs. 1000)"
        assert answer.reset == ErrorCode.NO_ERROR
        answer = await client.answer(client.call(framed(bytes(1001))))
        assert answer.status == "8"
        answer = await client.answer(client.call(framed(bytes(900))))
        assert answer.headers["grpc-message"] == "SERVER: Sent message larger than max (900 vs. 800)"

    over_memory(check, Limits(max_receive=1000, max_send=800))


def test_the_end_of_a_request_may_come_alone() -> None:
    async def check(client: Client, echo: Echo) -> None:
        stream = client.call(None)
        for piece in (b"\x00\x00", b"\x00\x00\x02h", b"i"):
            client.h2.send_data(stream, piece)
            client.exchange()
        client.h2.send_headers(stream, [("trailer", "x")], end_stream=True)
        client.exchange()
        assert (await client.answer(stream)).data == framed(b"hi")
        stream = client.call(None)
        client.h2.send_data(stream, framed(b"hi"), pad_length=9)
        client.h2.end_stream(stream)
        client.exchange()
        assert (await client.answer(stream)).data == framed(b"hi")

    over_memory(check)


def test_streams_of_messages_in_both_directions() -> None:
    async def check(client: Client, echo: Echo) -> None:
        answer = await client.answer(client.call(framed(b"ab"), "Parts"))
        assert answer.data == b"".join(framed(b"ab" * n) for n in range(4))
        body = b"".join(framed(b"x" * n) for n in range(5))
        assert (await client.answer(client.call(body, "Count"))).data == framed(b"[0, 1, 2, 3, 4]")
        assert (await client.answer(client.call(b"", "Count"))).data == framed(b"[]")
        stream = client.call(None, "Both")
        answer = client.answers[stream]
        for number in range(3):
            client.h2.send_data(stream, framed(b"%d" % number))
            expected = b"".join(framed(b"%d!" % n) for n in range(number + 1))
            await client.until(lambda expected=expected: answer.data == expected)
        client.h2.end_stream(stream)
        assert (await client.answer(stream)).status == "0"

    over_memory(check)


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_tiny_windows_are_kept_to(window: int) -> None:
    """h2 raises if a byte comes that it has not granted."""

    async def check(client: Client, echo: Echo) -> None:
        text = bytes(range(200)) * min(window, 10)
        streams = [client.call(framed(text)) for _ in range(3)] + [client.call(framed(text), "Parts")]
        for stream in streams[:3]:
            assert (await client.answer(stream)).data == framed(text)
        assert (await client.answer(streams[3])).data == b"".join(framed(text * n) for n in range(4))

    over_memory(check, window=window)


def test_what_a_client_does_not_take_waits_and_no_more_is_made() -> None:
    async def check(client: Client, echo: Echo) -> None:
        parts = client.call(framed(b"a" * 100_000), "Parts")
        large = client.call(framed(b"b" * 100_000))
        for _ in range(100):
            await asyncio.sleep(0)
            client.exchange()
        assert len(client.answers[parts].data) + len(client.answers[large].data) == 65_535
        waiting = client.connection._streams.open[parts].outbox
        assert waiting is not None
        assert len(waiting) <= 2, "the generator goes on without room for what it makes"
        client._grants = True
        client.h2.increment_flow_control_window(1_000_000)
        for stream in (parts, large):
            client.h2.increment_flow_control_window(1_000_000, stream)
        client.exchange()
        assert len((await client.answer(parts)).data) == 600_020
        assert len((await client.answer(large)).data) == 100_005

    over_memory(check, grants=False)


def test_a_window_may_become_negative_by_settings() -> None:
    async def check(client: Client, echo: Echo) -> None:
        stream = client.call(framed(b"b" * 70_000))
        assert len(client.answers[stream].data) == 65_535
        client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10})
        client.exchange()
        client.h2.increment_flow_control_window(100_000)
        client.h2.increment_flow_control_window(65_535 - 10, stream)
        client.exchange()
        assert len(client.answers[stream].data) == 65_535
        client.h2.increment_flow_control_window(100_000, stream)
        client.exchange()
        assert client.answers[stream].data == framed(b"b" * 70_000)

    over_memory(check, grants=False)


def test_a_full_transport_makes_answers_wait() -> None:
    async def check(client: Client, echo: Echo) -> None:
        client.connection.pause_writing()
        stream = client.call(framed(b"late"))
        assert client.answers[stream].data == b""
        client.connection.resume_writing()
        client.exchange()
        assert (await client.answer(stream)).data == framed(b"late")

    over_memory(check)


def test_large_requests_get_windows_as_they_come() -> None:
    async def check(client: Client, echo: Echo) -> None:
        body = framed(bytes(12_000_000))
        stream, at = client.call(None, "Count"), 0
        while at < len(body):
            room = min(client.h2.local_flow_control_window(stream), client.h2.max_outbound_frame_size)
            assert room, "the server grants nothing more"
            client.h2.send_data(stream, body[at : at + room])
            at += room
            await asyncio.sleep(0)
            client.exchange()
        client.h2.end_stream(stream)
        assert (await client.answer(stream)).data == framed(b"[12000000]")

    over_memory(check)


def test_deadlines_cancel_handlers_and_are_answered() -> None:
    async def check(client: Client, echo: Echo) -> None:
        answer = await client.answer(client.call(framed(b"wait"), more=[("grpc-timeout", "20m")]))
        assert (answer.status, answer.headers["grpc-message"]) == ("4", "Deadline Exceeded")
        await client.until(echo.cancelled.is_set)
        stream = client.call(None, more=[("grpc-timeout", "20m")])  # Whose message never comes.
        assert (await client.answer(stream)).status == "4"
        assert client.answers[stream].reset == ErrorCode.NO_ERROR

    over_memory(check)


def test_a_reset_cancels_the_handler() -> None:
    async def check(client: Client, echo: Echo) -> None:
        stream = client.call(framed(b"wait"))
        await client.until(echo.begun.is_set)
        client.h2.reset_stream(stream, ErrorCode.CANCEL)
        await client.until(echo.cancelled.is_set)
        await client.until(lambda: not client.connection._streams.tasks)
        assert not client.connection._streams.open

    over_memory(check)


def test_a_handler_that_waits_goes_on_in_a_task() -> None:
    async def check(client: Client, echo: Echo) -> None:
        stream = client.call(framed(b"wait"))
        await client.until(echo.begun.is_set)
        echo.go_on.set()
        assert (await client.answer(stream)).data == framed(b"wait")
        assert (await client.answer(client.call(framed(b"x"), "InTask"))).data == framed(b"x")

    over_memory(check)


def test_more_streams_than_granted_are_refused() -> None:
    async def check(client: Client, echo: Echo) -> None:
        client.h2.remote_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 10
        client.h2.remote_settings.acknowledge()
        streams = [client.call(framed(b"wait")) for _ in range(4)]
        assert client.answers[streams[3]].reset == ErrorCode.REFUSED_STREAM
        echo.go_on.set()
        for stream in streams[:3]:
            assert (await client.answer(stream)).status == "0"

    over_memory(check, Limits(max_streams=3))


def test_pings_and_settings_are_acknowledged() -> None:
    async def check(client: Client, echo: Echo) -> None:
        client.h2.ping(b"12345678")
        client.exchange()
        kinds = [type(event) for event in client.events]
        assert h2.events.PingAckReceived in kinds
        assert h2.events.SettingsAcknowledged in kinds

    over_memory(check)


def test_draining_takes_what_is_under_way_and_then_no_more() -> None:
    async def check(client: Client, echo: Echo) -> None:
        waiting = client.call(framed(b"wait"))
        client.connection.drain()
        late = client.h2.get_next_available_stream_id()  # On its way when GOAWAY comes.
        client.h2.send_headers(late, HEADERS)
        client.h2.send_data(late, framed(b"late"), end_stream=True)
        client.connection.data_received(client.h2.data_to_send())
        assert not client.transport.ended
        said = client.transport.taken()
        assert framed(b"late") in said, "a call that was sent before GOAWAY arrived is lost"
        echo.go_on.set()
        async with asyncio.timeout(DEADLINE):
            while client.connection._streams.open:
                await asyncio.sleep(0)
        client.connection.data_received(b"\x00\x00\x08\x06\x01\x00\x00\x00\x00draining")
        said += client.transport.taken()
        assert framed(b"wait") in said
        assert said.count(b"\x07\x00\x00\x00\x00\x00") == 2, (
            "GOAWAY twice: first without, then with a last stream"
        )
        assert client.transport.ended
        assert waiting < late

    over_memory(check)
