"""Sends random requests, derived from /openapi.json and as raw bytes, to a demo that runs as a process of its own.

A seed always gives the same requests. A fault is: a 5xx whose code docs/reference/api.md does not list, an answer that
is not HTTP or not valid JSON where it says so, an answer without the security headers, a traceback in the log, or the
end of the process.

    python -m tests.fuzz.http --requests 20000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import random
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.real.parts import REPOSITORY
from tests.service import Service
from tests.waiting import wait_for

TIMEOUT_S = 20.0
INCOMPLETE_S = 0.3  # for requests that may be incomplete, so that the server waits for the rest
TEXTS = (
    "",
    "CPU",
    "AVG",
    "5m",
    "a" * 300,
    "ünï😀",
    "\x00",
    "\r\nX: y",
    "../..",
    "%ff",
    "-1",
    "1e308",
    "NaN",
    "*",
    "kep",
)
CODINGS = ("gzip", "deflate", "br", "zstd", "identity", "x", "gzip, gzip", "")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "get", "X" * 40)
BODIES = (b"", b"{}", b"null", b"[", b"[" * 5000, b'{"Pod":{}}', b"\xff\xfe", b"\x1f\x8b\x08garbage", b"kind: Pod\n")
SECURITY_HEADERS = (b"x-content-type-options", b"content-security-policy", b"referrer-policy", b"x-frame-options")


class Demo(Service):
    """A demo with its pages and the extender."""

    verb = "demo"


class Fuzzer:
    """Makes requests, sends them, and judges the answers."""

    def __init__(self, port: int, document: dict[str, Any], documented: frozenset[str], *, seed: int) -> None:
        self._port = port
        self._random = random.Random(seed)
        self._routes = [
            (path, method, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]
        self._documented = documented
        self._kinds: tuple[Callable[[], bytes], ...] = (self._described, self._described, self._odd, self._mutated)
        self.statuses: Counter[str] = Counter()
        self.faults: list[str] = []

    def run(self, requests: int, *, until: float = float("inf")) -> int:
        """Send this number of requests, or fewer until the monotonic time `until`; return their number."""
        for number in range(requests):
            if time.monotonic() > until:
                return number
            made = self._random.choice(self._kinds)
            sent = made()
            received = self._exchange(sent, TIMEOUT_S if made == self._described else INCOMPLETE_S)
            if problem := self._problem(sent, received):
                self.faults.append(f"{problem}: {sent[:400]!r} -> {received[:300]!r}")
        return requests

    # --- requests ----------------------------------------------------------------------------------------------------

    def _described(self) -> bytes:
        """A request of the document, most of it valid."""
        path, method, operation = self._random.choice(self._routes)
        query = []
        for parameter in operation["parameters"]:
            value = quote(self._value(parameter["schema"]), safe="")
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", value or "x")
            elif self._random.random() < 0.4:
                query.append(f"{parameter['name']}={value}")
        target = path + ("?" + "&".join(query) if query else "")
        body = self._body() if method == "post" else b""
        return self._request(method.upper(), target.encode(), body, [("Content-Type", "application/json")])

    def _value(self, schema: dict[str, Any]) -> str:
        schema = schema.get("items", schema)
        if "enum" in schema and self._random.random() < 0.8:
            return str(self._random.choice(schema["enum"]))
        if schema.get("type") == "integer":
            return str(self._random.choice((0, 1, 7, -1, 10**6, 10**30)))
        return self._random.choice((*TEXTS, "default", "general-a-01", "all", "-1h", "2026-01-01T00:00:00Z", "cluster"))

    def _odd(self) -> bytes:
        """Unusual methods, targets and headers."""
        target = self._random.choice(
            (*(route[0] for route in self._routes), "*", "//watcher//", "http://evil.test/", "/x")
        )
        if self._random.random() < 0.3:
            target += "?" + "&".join(self._random.choice(TEXTS) for _ in range(self._random.randrange(1, 9)))
        extra = [
            ("Content-Encoding", self._random.choice(CODINGS)),
            ("Accept-Encoding", self._random.choice(CODINGS)),
            ("Origin", self._random.choice(("null", "http://evil.test", "http://localhost"))),
            ("Sec-Fetch-Site", self._random.choice(("cross-site", "same-origin", "none"))),
            ("Host", self._random.choice(("evil.test", "[::1", "a:b:c", ""))),
            ("Range", "bytes=0-1"),
            ("Expect", self._random.choice(("100-continue", "x"))),
            ("Upgrade", "websocket"),
            ("Transfer-Encoding", self._random.choice(("chunked", "gzip, chunked", "x"))),
            ("If-None-Match", self._random.choice(("*", '"x"', "a" * 1000))),
            ("Authorization", "Bearer x"),
            ("Content-Type", self._random.choice(("text/plain", "application/json", ""))),
        ]
        chosen = self._random.sample(extra, self._random.randrange(4))
        target_bytes = target.encode("utf-8", "surrogateescape").replace(b" ", b"%20")
        return self._request(self._random.choice(METHODS), target_bytes, self._body(), chosen)

    def _mutated(self) -> bytes:
        """A request of the other kinds with random bytes changed, removed, repeated or added."""
        data = bytearray(self._random.choice((self._described, self._odd))())
        for _ in range(self._random.randrange(1, 6)):
            at, length = self._random.randrange(len(data) + 1), self._random.randrange(1, 20)
            change = self._random.randrange(4)
            if change == 0:
                data[at : at + length] = self._random.randbytes(length)
            elif change == 1:
                del data[at : at + length]
            elif change == 2:
                data[at:at] = data[at : at + length] * self._random.randrange(1, 50)
            else:
                data[at:at] = self._random.choice((b"\r\n", b"\n", b"\x00", b" ", b":", b"HTTP/1.1", b"\xff"))
        return bytes(data)

    def _body(self) -> bytes:
        if self._random.random() < 0.5:
            return self._random.choice(BODIES)
        names = [f"general-a-{number:02d}" for number in range(self._random.randrange(30))]
        containers: Any = [{"name": "a", "resources": {"requests": {"cpu": self._random.choice(TEXTS)}}}]
        pod = {"metadata": {"name": "fuzz", "namespace": "x", "uid": "u"}, "spec": {"containers": containers}}
        document = {
            self._random.choice(("Pod", "pod", "POD", "x")): self._random.choice((pod, None, 1, [], {"spec": 1})),
            self._random.choice(("NodeNames", "nodenames")): self._random.choice((names, names * 50, None, [1], "x")),
            "Nodes": self._random.choice((None, {"items": [{"metadata": {"name": name}} for name in names]}, 7)),
        }
        return json.dumps(document).encode()

    def _request(self, method: str, target: bytes, body: bytes, extra: list[tuple[str, str]] | None = None) -> bytes:
        headers = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(body)), **dict(extra or [])}
        if not body:
            del headers["Content-Length"]
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("utf-8", "replace")
        version = self._random.choice((b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0"))
        return method.encode() + b" " + target + b" " + version + b"\r\n" + lines + b"\r\n" + body

    # --- answers -----------------------------------------------------------------------------------------------------

    def _exchange(self, sent: bytes, timeout: float) -> bytes:
        """Send bytes; return what arrives until the connection is closed, or until `timeout`."""
        received = b""
        with (
            socket.create_connection(("127.0.0.1", self._port), timeout=timeout) as connection,
            suppress(ConnectionError, TimeoutError),
        ):
            connection.sendall(sent)
            while piece := connection.recv(1 << 20):
                received += piece
        return received

    def _problem(self, sent: bytes, received: bytes) -> str:
        if not received:
            self.statuses["no answer"] += 1
            return ""
        head, _, body = received.partition(b"\r\n\r\n")
        match = re.match(rb"HTTP/1\.[01] (\d{3}) ", head)
        if match is None:
            return "not HTTP"
        status = int(match[1])
        self.statuses[str(status)] += 1
        names = {line.partition(b":")[0].strip().lower() for line in head.split(b"\r\n")[1:]}
        if status != 100 and not names.issuperset(SECURITY_HEADERS):
            return "security headers are missing"
        if status < 500:
            return ""
        try:
            code = json.loads(body)["error"]["code"]
        except (ValueError, KeyError, TypeError):
            return "" if sent.startswith(b"HEAD ") else f"{status} without an error document"
        return "" if code in self._documented else f"undocumented {status} {code}"


def documented_codes() -> frozenset[str]:
    """The error codes of 5xx responses in docs/reference/api.md, without `internal`."""
    rows = re.findall(r"^\|5\d\d\|([^|]+)\|", (REPOSITORY / "docs/reference/api.md").read_text(), re.MULTILINE)
    return frozenset(code for row in rows for code in re.findall(r"`(\w+)`", row)) - {"internal"}


def fuzz(directory: Path, *, requests: int, seed: int, seconds: float = float("inf")) -> Iterator[str]:
    """Run a demo and send requests; yield the faults, and last a summary."""
    with Demo(directory, "--nodes", "50", env={"TMPDIR": str(directory)}) as service:
        wait_for(lambda: service.get("/watcher").status == 200, what="load of the nodes")
        fuzzer = Fuzzer(service.port, service.get("/openapi.json").json(), documented_codes(), seed=seed)
        sent = fuzzer.run(requests, until=time.monotonic() + seconds)
        yield from fuzzer.faults
        if not service.is_running():
            yield "the process ended"
        elif service.get("/healthz").status != 200:
            yield "/healthz does not answer"
        log = service.log()
        if "Traceback" in log or "Exception" in log:
            yield f"a traceback in the log: {log[max(0, log.find('Traceback') - 300) :][:3000]}"
        rss = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{service.pid}/status").read_text())
        memory = f"{int(rss[1]) // 1024} MiB" if rss else "unknown"
        statuses = ", ".join(f"{status}: {count}" for status, count in sorted(fuzzer.statuses.items()))
        print(f"seed {seed}: {sent} requests, {len(fuzzer.faults)} faults, memory {memory}; {statuses}")


def main() -> int:
    """Print the faults; the exit code is 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        faults = list(fuzz(Path(directory), requests=arguments.requests, seed=arguments.seed))
    for fault in faults[:50]:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
