"""Bodies of megabytes are sent in parts, which clients do not notice."""

import http.client
import json
import socket

from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import WINDOWS, large_fleet, publish, snapshot_of
from tests.waiting import PATIENCE_SECONDS
from watcher.core.publishing.selection import Selection, Shape
from watcher.platform.http.responses import PIECE_BYTES

PUBLISHED = publish(snapshot_of(large_fleet(2000)))
BODY = PUBLISHED.document(Selection(WINDOWS[-1])).body(Shape.WATCHER)


def test_a_large_body_arrives_complete_and_the_connection_stays_usable() -> None:
    """Byte for byte, with its length, twice over one connection, and a small response after it."""
    assert len(BODY) > 3 * PIECE_BYTES
    with Live(FakeService(published=PUBLISHED)) as live:
        connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=PATIENCE_SECONDS)
        for _ in range(2):
            connection.request("GET", "/watcher")
            response = connection.getresponse()
            assert response.getheader("Content-Length") == str(len(BODY))
            assert response.getheader("Content-Type") == "application/json"
            assert response.read() == BODY
        connection.request("GET", "/watcher/node-00042.example.com")
        node = json.loads(connection.getresponse().read())
        assert list(node["data"]["NodeMetricsMap"]) == ["node-00042.example.com"]
        connection.close()


def test_head_of_a_large_body_has_its_length_only() -> None:
    with Live(FakeService(published=PUBLISHED)) as live:
        answer = live.ask("/watcher", method="HEAD")
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", str(len(BODY)))


def test_a_client_that_disconnects_during_a_body_does_not_affect_others() -> None:
    """Its connection is closed, and the next request is served."""
    with Live(FakeService(published=PUBLISHED)) as live:
        with socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE_SECONDS) as connection:
            connection.sendall(b"GET /watcher HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert live.ask("/watcher").body == BODY
