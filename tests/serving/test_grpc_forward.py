"""The gRPC forwarder between a client and a sidecar that says what a test says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio
import h2.config
import h2.connection
import pytest
from tensorflow_serving.apis import predict_pb2

from registry import ServingTarget
from serving.gateway.grpc_forward import PREDICTION, GRPCForwarder
from serving.gateway.in_flight import InFlight
from serving.grpc_client import Channel
from serving.grpc_transport import Limits, Server, frames
from serving.grpc_transport.frames import ErrorCode
from serving.routing import Routes, follow
from serving.runtime import VersionState
from tests.serving.grpc_transport.client_support import Peer, Script, against
from tests.serving.grpc_transport.support import DEADLINE, HEADERS, framed

Code = grpc.StatusCode
PREDICT = f"{PREDICTION}Predict"
ROUTES = follow(
    [ServingTarget("census", "/models/census", (2,), {"production": 2})],
    {"census": {2: VersionState("AVAILABLE")}},
    Routes(),
    1,
)


def request() -> bytes:
    found = predict_pb2.PredictRequest()
    found.model_spec.name = "census"
    return found.SerializeToString()


class Hop:
    """A gateway's server with the forwarder alone."""

    def __init__(self, sidecar: str) -> None:
        self.in_flight, self.troubles = InFlight(), 0
        self.forwarder = GRPCForwarder(sidecar, lambda: ROUTES, self.in_flight, self._trouble)
        self.server = Server(Limits())
        self.server.add_generic_rpc_handlers((self.forwarder,))
        self.bound = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.bound.getsockname()[1]}"

    def _trouble(self) -> None:
        self.troubles += 1

    async def quiet(self) -> None:
        while self.in_flight.total():
            await asyncio.sleep(0)


def forwarding(script: Script, use: Callable[[Hop], Awaitable[None]]) -> None:
    async def between(channel: Channel) -> None:
        hop = Hop(channel.target)
        await hop.server.listen_on(hop.bound)
        try:
            await use(hop)
        finally:
            await hop.server.stop(DEADLINE)
            await hop.forwarder.close()
        assert hop.in_flight.total() == 0

    against(script, between)


async def refused(hop: Hop, timeout: float | None = None) -> grpc.aio.AioRpcError:
    async with grpc.aio.insecure_channel(hop.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(PREDICT)(request(), timeout=timeout)
    return caught.value


def test_the_version_is_put_in_and_the_answer_goes_back_as_it_is() -> None:
    async def script(peer: Peer) -> None:
        await peer.hello()
        _, _, number, payload, _ = await peer.frame(frames.DATA)
        spec = predict_pb2.PredictRequest.FromString(payload[5:]).model_spec
        assert (spec.name, spec.version.value, spec.version_label) == ("census", 2, "")
        peer.send(peer.answer(number, b"\xff no protobuf"))

    async def use(hop: Hop) -> None:
        async with grpc.aio.insecure_channel(hop.address) as channel:
            assert await channel.unary_unary(PREDICT)(request()) == b"\xff no protobuf"
        assert hop.troubles == 0

    forwarding(script, use)


def test_errors_of_the_sidecar_go_back_with_text_and_metadata() -> None:
    async def script(peer: Peer) -> None:
        await peer.hello()
        more = [("grpc-message", "a%0Ab"), ("k", "v"), ("k-bin", "AP8")]
        peer.send(peer.headers(await peer.request()), peer.trailers(1, 3, *more))

    async def use(hop: Hop) -> None:
        error = await refused(hop)
        assert (error.code(), error.details()) == (Code.INVALID_ARGUMENT, "a\nb")
        assert tuple(error.trailing_metadata()) == (("k", "v"), ("k-bin", b"\x00\xff"))
        assert hop.troubles == 0

    forwarding(script, use)


def test_a_sidecar_that_has_forgotten_or_gone_is_unavailable_and_looked_at() -> None:
    async def script(peer: Peer) -> None:
        await peer.hello()
        number = await peer.request()
        lost = ("grpc-message", "Servable not found for request: Specific(census, 2)")
        peer.send(peer.headers(number), peer.trailers(number, 5, lost))
        await peer.request()
        peer.hang_up()

    async def use(hop: Hop) -> None:
        error = await refused(hop)
        assert error.code() is Code.UNAVAILABLE
        assert "has restarted and is loading its models" in error.details()
        assert hop.troubles == 1
        error = await refused(hop)
        assert error.code() is Code.UNAVAILABLE
        assert "was lost: the server has closed it" in error.details()
        assert hop.troubles == 2

    forwarding(script, use)


def test_the_clients_deadline_holds_at_the_sidecar_too() -> None:
    timeouts: list[str] = []

    async def script(peer: Peer) -> None:
        await peer.hello()
        block = (await peer.frame(frames.HEADERS))[3]
        timeouts.append(dict(peer.decoded(block))["grpc-timeout"])
        assert (await peer.frame(frames.RST_STREAM))[2:4] == (1, ErrorCode.CANCEL.to_bytes(4))

    async def use(hop: Hop) -> None:
        assert (await refused(hop, timeout=0.2)).code() is Code.DEADLINE_EXCEEDED
        await hop.quiet()
        assert timeouts[0].endswith("m")
        assert int(timeouts[0][:-1]) <= 250

    forwarding(script, use)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_call_that_its_client_resets_is_reset_at_the_sidecar(at_once: bool) -> None:
    """Even if it is reset in the same breath, before the call has become a task."""

    async def script(peer: Peer) -> None:
        await peer.hello()
        peer.send(peer.answer(await peer.request(), b"first"))
        assert await peer.request() == 3
        assert (await peer.frame(frames.RST_STREAM))[2:4] == (3, ErrorCode.CANCEL.to_bytes(4))
        peer.send(peer.answer(await peer.request(), b"last"))

    async def use(hop: Hop) -> None:
        client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        client.initiate_connection()
        _, writer = await asyncio.open_connection(*hop.address.split(":"))
        async with grpc.aio.insecure_channel(hop.address) as channel:
            call = channel.unary_unary(PREDICT)
            assert await call(request()) == b"first"
            client.send_headers(1, [(name, PREDICT if name == ":path" else value) for name, value in HEADERS])
            client.send_data(1, framed(request()), end_stream=True)
            if not at_once:
                writer.write(client.data_to_send())
                while not hop.in_flight.total():
                    await asyncio.sleep(0)
            client.reset_stream(1, ErrorCode.CANCEL)
            writer.write(client.data_to_send())
            (connection,) = hop.forwarder._channel._connections
            while connection._streams.last < 3 or connection._streams.open:
                await asyncio.sleep(0)
            assert hop.in_flight.total() == 0
            assert await call(request()) == b"last"
        writer.close()
        await writer.wait_closed()
        assert hop.troubles == 0

    forwarding(script, use)
