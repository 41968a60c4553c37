"""Sends one request over and over on some connections, and prints as JSON how many were answered and how
fast.

    python -m benchmarks.serving_load (rest|grpc) HOST:PORT TARGET CONNECTIONS SECONDS PAYLOAD_FILE

TARGET is the path of REST or the method of gRPC. A process of its own, so that the server has its own
interpreter; no parsing of answers beyond their length and status.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import uvloop


async def rest(address: str, target: str, payload: bytes, deadline: float, latencies: list[float]) -> None:
    """Ask on one keep-alive connection until the deadline."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
    head = f"POST {target} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len(payload)}\r\n"
    head += "Content-Type: application/json\r\n\r\n"
    message = head.encode() + payload
    while (started := time.perf_counter()) < deadline:
        writer.write(message)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"The server answered {answer.splitlines()[0].decode()}")
        length = answer.lower().partition(b"content-length:")[2]
        if length:
            await reader.readexactly(int(length.split(b"\r\n")[0]))
        else:
            await reader.readuntil(b"0\r\n\r\n")  # Chunked, as Ray Serve answers; JSON has no such bytes.
        latencies.append(time.perf_counter() - started)
    writer.close()


async def grpc(address: str, target: str, payload: bytes, deadline: float, latencies: list[float]) -> None:
    """Ask on one channel until the deadline."""
    import grpc as library

    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    async with library.aio.insecure_channel(address, options=options) as channel:
        call = channel.unary_unary(target)
        while (started := time.perf_counter()) < deadline:
            await call(payload)
            latencies.append(time.perf_counter() - started)


async def measure(
    protocol: str, address: str, target: str, connections: int, seconds: float, payload: bytes
) -> dict[str, float]:
    """Return requests per second, the median and 99th percentile of the latency, in milliseconds, and how
    many requests were answered, those before the measurement included."""
    ask = {"rest": rest, "grpc": grpc}[protocol]

    async def ask_on_all(deadline: float, latencies: list[float]) -> None:
        await asyncio.gather(
            *(ask(address, target, payload, deadline, latencies) for _ in range(connections))
        )

    before: list[float] = []
    await ask_on_all(time.perf_counter() + seconds / 4, before)
    latencies: list[float] = []
    started = time.perf_counter()
    await ask_on_all(started + seconds, latencies)
    elapsed = time.perf_counter() - started
    latencies.sort()
    return {
        "requests_per_second": len(latencies) / elapsed,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)] * 1e3,
        "requests": len(before) + len(latencies),
    }


def main() -> None:
    """Measure as the command line says."""
    protocol, address, target, connections, seconds, file = sys.argv[1:]
    payload = Path(file).read_bytes()
    result = uvloop.run(measure(protocol, address, target, int(connections), float(seconds), payload))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
