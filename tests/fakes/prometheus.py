"""A query API of Prometheus over a real socket with any response that a test sets.

For responses that a real Prometheus does not give: half a response, one byte per second, a login page, a wrong header.
tests/real uses a real one.
"""

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Asked:
    """A request: its path, its parameters, its headers with names in lower case, its method and its body."""

    path: str
    parameters: Mapping[str, str]
    headers: Mapping[str, str]
    method: str = "GET"
    body: bytes = b""

    @property
    def query(self) -> str:
        return self.parameters.get("query", "")


Script = Callable[[socket.socket], None]
Answer = Callable[[Asked], bytes | Script]


def responded(body: bytes | str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> bytes:
    """A complete HTTP response."""
    content = body.encode() if isinstance(body, str) else body
    fields = {"Content-Length": str(len(content)), "Content-Type": "application/json", **(headers or {})}
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n" + "".join(f"{k}: {v}\r\n" for k, v in fields.items())
    return head.encode() + b"\r\n" + content


def result(kind: str, rows: Sequence[Mapping[str, Any]], **more: Any) -> bytes:
    """The response to a successful query."""
    return responded(json.dumps({"status": "success", "data": {"resultType": kind, "result": list(rows)}, **more}))


def vector(*labels: Mapping[str, str], **more: Any) -> bytes:
    """An instant vector with these labels, each value 1."""
    return result("vector", [{"metric": one, "value": [1.0, "1"]} for one in labels], **more)


def values(*pairs: tuple[Mapping[str, str], str]) -> bytes:
    """An instant vector of (labels, value) pairs."""
    return result("vector", [{"metric": one, "value": [1.0, value]} for one, value in pairs])


def matrix(*series: tuple[Mapping[str, str], Sequence[tuple[float, str]]], **more: Any) -> bytes:
    """Series with (time, value) pairs."""
    return result(
        "matrix", [{"metric": one, "values": [list(pair) for pair in pairs]} for one, pairs in series], **more
    )


@dataclass
class FakePrometheus:
    """Answers each request with the result of `answer`: bytes to send, or a script for the socket. Entered again, it
    listens on the same port."""

    answer: Answer
    asked: list[Asked] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when a client has closed a connection."""
    tls: ssl.SSLContext | None = None
    state_metrics: bool = False
    """Whether `answer` has the series of kube-state-metrics; otherwise a query for them is answered with none, and not
    listed in `asked`."""

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", getattr(self, "port", 0)))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone would not wake the thread in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # the client closed it first
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    @property
    def queries(self) -> list[str]:
        """The received queries."""
        return [asked.query for asked in self.asked]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        if self.tls is not None:
            try:
                connection = self.tls.wrap_socket(connection, server_side=True)
            except OSError:  # without TLS, or with a refused one
                connection.close()
                return
        with connection, connection.makefile("rb") as stream:
            try:
                while (asked := _read_request(stream)) is not None:
                    if asked.query.lstrip("(").startswith("kube_") and not self.state_metrics:
                        connection.sendall(vector())
                        continue
                    self.asked.append(asked)
                    answer = self.answer(asked)
                    if isinstance(answer, bytes):
                        connection.sendall(answer)
                    else:
                        answer(connection)
            except OSError:
                pass  # closed in the middle
            self.ended.set()


def _read_request(stream: Any) -> Asked | None:
    first = stream.readline()
    if not first:
        return None
    headers = {}
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    method, address, *_ = first.decode("latin-1").split()
    target = urlsplit(address)
    body = stream.read(int(headers.get("content-length", 0)))
    return Asked(target.path, dict(parse_qsl(target.query)), headers, method, body)


def until_hung_up(connection: socket.socket) -> None:
    """Send nothing until the client closes the connection."""
    connection.recv(1)
