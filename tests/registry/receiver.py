"""A receiver of webhooks: a real HTTP server that remembers what it got and answers as it is told."""

from __future__ import annotations

import gc
import json
import ssl
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Got:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        return json.loads(self.body)


@dataclass
class Receiver:
    """What came, and what is answered: each status once, then 204 for ever."""

    statuses: list[int] = field(default_factory=list)
    got: list[Got] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)
    hold: threading.Event = field(default_factory=threading.Event)
    """While it is not set, requests get no answer."""
    url: str = ""

    def wait_for(self, condition: Callable[[list[Got]], bool]) -> list[Got]:
        """Return what has come, once that is enough."""
        with self.news:
            assert self.news.wait_for(lambda: condition(self.got), timeout=60), f"only {self.got} within 60 s"
            return list(self.got)


class Server:
    """Runs a receiver on a free port of loopback."""

    def __init__(self, certificate: Path | None = None) -> None:
        """With `certificate`, a file of certificate and key, it speaks TLS."""
        self.receiver = receiver = Receiver()
        receiver.hold.set()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                if len(body) < length:
                    self.close_connection = True  # The sender has died half-way.
                    return
                with receiver.news:
                    receiver.got.append(Got(self.path, dict(self.headers), body))
                    status = receiver.statuses.pop(0) if receiver.statuses else 204
                    receiver.news.notify_all()
                receiver.hold.wait()
                text = b"" if status == 204 else b"go away\n" * 100
                try:
                    self.send_response(status)
                    if status in (301, 302, 307):
                        self.send_header("Location", receiver.url + "/elsewhere")
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # The sender has died or read enough.

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        receiver.url = f"http://127.0.0.1:{self._server.server_port}"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            receiver.url = f"https://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self.receiver.hold.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        with warnings.catch_warnings():
            # Python leaves a TLS socket open whose sender had hung up before it was accepted.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
