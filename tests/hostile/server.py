"""A server that answers every request with the same hostile response, over a raw socket."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Self

MIB = 1 << 20
Send = Callable[[bytes], None]
Hostility = Callable[[Send, bytes], None]


def _head(status: str = "200 OK", content_type: str = "application/json", **more: str) -> bytes:
    fields = {"Content-Type": content_type, "Connection": "close", **more}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode()


def _of(*parts: bytes, **more: str) -> Hostility:
    """A response that ends: the parts one after the other."""

    def answer(send: Send, _request: bytes) -> None:
        send(_head(**more))
        for part in parts:
            send(part)

    return answer


def _without_end(part: bytes, start: bytes = b"", **more: str) -> Hostility:
    def answer(send: Send, _request: bytes) -> None:
        send(_head(**more) + start)
        while True:
            send(part)

    return answer


@cache
def _compressed_spaces() -> bytes:
    """The beginning of a gzip stream, and 16 MiB of spaces that may follow any number of times."""
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    return stream.compress(b" " * (16 * MIB)) + stream.flush(zlib.Z_FULL_FLUSH)


def _bomb(send: Send, _request: bytes) -> None:
    """3 GiB of spaces as 3 MB of gzip."""
    first = _compressed_spaces()
    send(_head(Content_Encoding="gzip") + first)
    for _ in range(192):
        send(first[10:])  # without the header of gzip


def _drip(send: Send, _request: bytes) -> None:
    send(_head())
    while True:
        send(b" ")
        time.sleep(0.02)


def _hang(_send: Send, _request: bytes) -> None:
    time.sleep(30.0)


def _drip_head(send: Send, _request: bytes) -> None:
    send(b"HTTP/1.1 200 OK\r\n")
    while True:
        send(b"X-A: b\r\n")
        time.sleep(0.02)


def _echo(send: Send, request: bytes) -> None:
    """A proxy's error page that repeats the request, with its Authorization header."""
    send(_head("502 Bad Gateway", "text/plain") + request)


def _redirect(send: Send, _request: bytes) -> None:
    send(_head("302 Found", Location="/elsewhere", Content_Length="0"))


DEEP = 1_000_000
MANY = 15 * MIB
HOSTILITIES: dict[str, Hostility] = {
    "endless spaces": _without_end(b" " * MIB),
    "endless numbers": _without_end(b"1," * (MIB // 2), b"["),
    "endless error": _without_end(b"x" * MIB, status="500 Internal Server Error"),
    "endless line": _without_end(b"x" * MIB, b'{"type":"ADDED","object":{"metadata":{"name":"'),
    "bomb": _bomb,
    "many values": _of(b'{"status":"success","data":{"resultType":"matrix","result":[', b"1," * MANY, b"1]}}"),
    "many objects": _of(b'{"kind":"NodeList","metadata":{},"items":[', b"{}," * MANY, b"{}]}"),
    "many lists": _of(b'{"results":[{"series":[', b"[]," * MANY, b"[]]}]}"),
    "deep": _of(b'{"status":"success","data":{"resultType":"matrix","result":' + b"[" * DEEP + b"]" * DEEP),
    "deep list": _of(b"[" * DEEP),
    "deep object": _of(b'{"a":' * DEEP),
    "deep msgpack": _of(b"\x92\x01" + b"\x91" * (5 * MIB), content_type="application/msgpack"),
    "array bomb": _of(b"\x92\x01\xdd\xff\xff\xff\xff" + b"\xc0" * MIB, content_type="application/msgpack"),
    "drip": _drip,
    "drip of headers": _drip_head,
    "hang": _hang,
    "large header": lambda send, _: send(b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * (5 * MIB) + b"\r\n\r\n"),
    "many headers": lambda send, _: send(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 200_000 + b"\r\n"),
    "long length": _of(b"{}", Content_Length=str(10**15)),
    "short length": _of(b'{"status":"success"}' * 100, Content_Length="3"),
    "two lengths": lambda send, _: send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 9\r\n\r\n{}"),
    "broken gzip": _of(os.urandom(1000), Content_Encoding="gzip"),
    "broken chunks": _of(b"zz\r\nabc", Transfer_Encoding="chunked"),
    "huge chunk": _of(b"fffffffffffffff\r\nabc", Transfer_Encoding="chunked"),
    "redirect": _redirect,
    "page": _of(b"<!DOCTYPE html><title>Log in</title>" * 1000, content_type="text/html"),
    "nonsense": lambda send, _: send(os.urandom(5000)),
    "bad UTF-8": _of(b'{"status":"\xff\xfe"}'),
    "empty": _of(b""),
    "empty object": _of(b"{}"),
    "other object": _of(b'{"nodes":[{}],"decision":[],"pod":1,"first":0,"data":[],"timestamp":"x","items":{}}'),
    "echo": _echo,
}
WAITING = ("drip", "drip of headers", "hang")
"""Those that a client ends only by its timeout, which is 30 s in the commands."""


class HostileServer:
    """Answers with `hostility`; `elsewhere` counts requests that followed a redirect."""

    def __init__(self) -> None:
        self.hostility = "empty"
        self.asked = self.elsewhere = 0

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        for connection in self._connections():
            self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _connections(self) -> Iterator[socket.socket]:
        while True:
            try:
                yield self._listener.accept()[0]
            except OSError:
                return

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            request = connection.recv(1 << 16)
            if request:
                self.asked += 1
                self.elsewhere += b"/elsewhere" in request.splitlines()[0]
                HOSTILITIES[self.hostility](connection.sendall, request)
        self._open.discard(connection)
