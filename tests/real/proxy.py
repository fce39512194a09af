"""A reverse proxy in front of a real Prometheus with faults that a test can set while it runs.

Components between load-watcher and Prometheus (gateways, query frontends, login pages) fail in more ways than
Prometheus itself. So the responses here are real ones that are cut, delayed, replaced or changed on the way.

 with FaultyProxy(prometheus.url) as proxy: proxy.fault = hang ... proxy.fault = passed_on
"""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self, cast
from urllib.parse import parse_qsl, urlsplit

TRICKLE_SECONDS = 0.05

Rows = list[dict[str, Any]]


class _Proxy(ThreadingHTTPServer):
    """The listening socket, and the state that its connections share."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Exchange)
        self.upstream = urlsplit(upstream)
        self.fault: Fault = passed_on
        self.closing = threading.Event()
        self.questions = 0
        self.waiting = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnected is not an error."""


class _Exchange(BaseHTTPRequestHandler):
    """One connection; each request is forwarded, and the fault changes the response."""

    protocol_version = "HTTP/1.1"
    server: _Proxy
    influxdb = ""
    """The version of InfluxDB in its responses."""

    def do_GET(self) -> None:
        self._exchange()

    def do_POST(self) -> None:
        self._exchange()

    def log_message(self, *_: object) -> None:
        """Log nothing: `questions` has the requests."""

    def _exchange(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.server.questions += 1
        fault = self.server.fault
        try:
            status, content_type, body = self._ask(sent)
        except OSError:
            status, content_type, body = 502, "text/plain", b"Bad Gateway"
        fault(Reply(self, status, content_type, body, question=f"{self.path} {sent.decode()}"))

    def _ask(self, sent: bytes) -> tuple[int, str, bytes]:
        """The real response, uncompressed."""
        host = self.server.upstream
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "accept-encoding", "connection")}
        with contextlib.closing(http.client.HTTPConnection(host.hostname or "", host.port, timeout=5)) as connection:
            connection.request(self.command, self.path, body=sent or None, headers=headers)
            answer = connection.getresponse()
            self.influxdb = answer.headers.get("X-Influxdb-Version", "")
            return answer.status, answer.headers.get("Content-Type", ""), answer.read()


class Reply:
    """A real response on its way to the client, which a fault may change. `question` is the path and body of the
    request."""

    def __init__(self, exchange: _Exchange, status: int, content_type: str, body: bytes, *, question: str) -> None:
        self.question = question
        self._exchange = exchange
        self.status = status
        self.content_type = content_type
        self.body = body

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the request."""
        return dict(self._exchange.headers.items())

    @property
    def asked(self) -> dict[str, str]:
        """The parameters of the request: query, start, end, step."""
        return dict(parse_qsl(urlsplit(self._exchange.path).query))

    def begin(self, *, status: int | None = None, content_type: str | None = None, length: int | None = None) -> None:
        """Send status and headers, by default those of the real response."""
        self._exchange.send_response(self.status if status is None else status)
        self._exchange.send_header("Content-Type", content_type or self.content_type)
        self._exchange.send_header("Content-Length", str(len(self.body) if length is None else length))
        if self._exchange.influxdb:
            self._exchange.send_header("X-Influxdb-Version", self._exchange.influxdb)
        self._exchange.end_headers()

    def send(self, body: bytes) -> None:
        """Send a part of the body."""
        self._exchange.wfile.write(body)

    def hang_up(self) -> None:
        """Close the connection after the sent part."""
        self._exchange.close_connection = True

    def wait(self, seconds: float = 3600.0) -> bool:
        """Keep the client waiting; true if the proxy is being closed."""
        self._exchange.server.waiting += 1
        return self._exchange.server.closing.wait(seconds)


Fault = Callable[[Reply], None]


class FaultyProxy:
    """The running proxy. `fault` may be changed at any time and applies to later requests."""

    def __init__(self, upstream: str) -> None:
        self._server = _Proxy(upstream)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="faulty-proxy", daemon=True
        )

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def questions(self) -> int:
        """The number of requests."""
        return self._server.questions

    @property
    def waiting(self) -> int:
        """The number of waiting clients."""
        return self._server.waiting

    @property
    def fault(self) -> Fault:
        """The change of responses."""
        return self._server.fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        self._server.fault = fault

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


# --- faults of the connection ----------------------------------------------------------------------------------------


def passed_on(reply: Reply) -> None:
    """No fault."""
    reply.begin()
    reply.send(reply.body)


def unavailable(reply: Reply) -> None:
    """503, as from a gateway without a backend."""
    body = b"<html><body><h1>503 Service Unavailable</h1></body></html>"
    reply.begin(status=503, content_type="text/html", length=len(body))
    reply.send(body)


def login_page(reply: Reply) -> None:
    """200 with HTML, as from an authenticating proxy with an expired session."""
    body = b"<!doctype html><title>Sign in</title><form action=/login>password</form>"
    reply.begin(status=200, content_type="text/html; charset=utf-8", length=len(body))
    reply.send(body)


def hang(reply: Reply) -> None:
    """Send nothing, not even a status."""
    reply.wait()
    reply.hang_up()


def trickle(reply: Reply) -> None:
    """Send the whole response, one byte every 50 ms: a timeout of the socket never expires."""
    reply.begin()
    for position in range(len(reply.body)):
        reply.send(reply.body[position : position + 1])
        if reply.wait(TRICKLE_SECONDS):
            break
    reply.hang_up()


def cut_in_half(reply: Reply) -> None:
    """Half of the announced body, then the end of the connection."""
    reply.begin()
    reply.send(reply.body[: len(reply.body) // 2])
    reply.hang_up()


def half_json(reply: Reply) -> None:
    """Half of the body with a matching length: valid HTTP, but invalid JSON."""
    half = reply.body[: len(reply.body) // 2]
    reply.begin(length=len(half))
    reply.send(half)


def only_with(headers: Mapping[str, str]) -> Fault:
    """401 for requests without these headers, as from an authenticating gateway."""

    def fault(reply: Reply) -> None:
        if headers.items() <= reply.headers.items():
            passed_on(reply)
            return
        body = b"Unauthorized"
        reply.begin(status=401, content_type="text/plain", length=len(body))
        reply.send(body)

    return fault


def hang_beyond(steps: int) -> Fault:
    """No response to range queries with more steps, as from a server that is too slow for them."""

    def fault(reply: Reply) -> None:
        asked = reply.asked
        if "step" in asked and (float(asked["end"]) - float(asked["start"])) / float(asked["step"]) >= steps:
            hang(reply)
        else:
            passed_on(reply)

    return fault


def once_asked(text: str, act: Callable[[], object]) -> Fault:
    """Act when the first query with this text arrives, before its response: the response is lost, and so are later ones
    if the act ends the server."""
    done = threading.Event()

    def fault(reply: Reply) -> None:
        if text in reply.asked.get("query", "") and not done.is_set():
            done.set()
            act()
            unavailable(reply)
        else:
            passed_on(reply)

    return fault


def slow(seconds: float) -> Fault:
    """The real response, late."""

    def fault(reply: Reply) -> None:
        time.sleep(seconds)
        passed_on(reply)

    return fault


# --- faults of the content -------------------------------------------------------------------------------------------


def rewritten(change: Callable[[Rows], Rows]) -> Fault:
    """The rows of each successful query, changed."""

    def fault(reply: Reply) -> None:
        if reply.status == 200 and reply.content_type.startswith("application/json"):
            document = json.loads(reply.body)
            data = document.get("data")
            if isinstance(data, dict) and "result" in data:
                data["result"] = change(data["result"])
                reply.body = json.dumps(document).encode()
        passed_on(reply)

    return fault


def _with_values(rows: Rows, value: Callable[[int, str], Any]) -> Rows:
    """Rows with each sample's value replaced; `value` gets its number and its old value. Counts of series, which
    discovery uses, stay."""
    for row in rows:
        for number, sample in enumerate(cast(Iterable[list[Any]], row.get("values", ()))):
            sample[1] = value(number, sample[1])
    return rows


def values_become(*texts: Any) -> Fault:
    """The first sample's value becomes the first of these, that of the next sample the second, and so on in turn; None
    keeps it."""

    def value(number: int, before: str) -> Any:
        text = texts[number % len(texts)]
        return before if text is None else text

    return rewritten(lambda rows: _with_values(rows, value))


def renamed_label(before: str, after: str) -> Fault:
    """A label with another name, as after a change of relabelling."""

    def change(rows: Rows) -> Rows:
        for row in rows:
            labels = row["metric"]
            row["metric"] = {after if name == before else name: value for name, value in labels.items()}
        return rows

    return rewritten(change)


empty: Fault = rewritten(lambda rows: [])
"""Success without any row."""
