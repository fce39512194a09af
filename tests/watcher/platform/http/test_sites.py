"""Pages of other sites cannot use the browser of a user to reach the service."""

import pytest

from tests.fakes.service import Answer, Live
from tests.watcher.platform.http.test_connections import ROUTES
from watcher.platform.http.sites import LocalHosts, local_hosts

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def live():
    with Live(routes=ROUTES, hosts=local_hosts("127.0.0.1", ["proxy.example.org"])) as running:
        yield running


def post(live: Live, headers: dict[str, str], *, host: str = "localhost") -> Answer:
    return live.ask("/take", method="POST", headers={"Host": host, **headers}, body=b"{}")


@pytest.mark.parametrize(
    "headers",
    [
        JSON,  # kube-scheduler
        {"Sec-Fetch-Site": "same-origin", **JSON},
        {"Sec-Fetch-Site": "none", "Content-Type": "application/json; charset=utf-8"},
        {"Content-Type": "Application/JSON ; charset=utf-8"},
        {"Origin": "http://localhost", **JSON},
        {"Origin": "https://localhost", "Sec-Fetch-Site": "same-origin", **JSON},  # behind a proxy that adds TLS
    ],
)
def test_programs_and_the_own_page_may_post(live: Live, headers: dict[str, str]) -> None:
    answered = post(live, headers)
    assert (200, b"2") == (answered.status, answered.body)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", **JSON},
        {"Sec-Fetch-Site": "same-site", **JSON},
        {"Origin": "http://evil.test", **JSON},
        {"Origin": "http://localhost.evil.test", **JSON},
        {"Origin": "http://localhost:81", **JSON},
        {"Origin": "null", **JSON},
        {"Origin": "", **JSON},
        {"Origin": "http://[", **JSON},
        {"Origin": "//[::1", **JSON},
        {"Origin": "http://evil.test", "Content-Type": "text/plain"},
    ],
)
def test_a_post_of_another_site_is_refused(live: Live, headers: dict[str, str]) -> None:
    answered = post(live, headers)
    assert (403, "cross_site") == (answered.status, answered.error["code"])


@pytest.mark.parametrize("browser", [{}, {"Sec-Fetch-Site": "same-origin"}])
@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",  # curl -d
        "application/yaml",
        "application/jsonp",
        "text/plain, application/json",
    ],
)
def test_a_body_of_another_type_is_refused(live: Live, kind: str, browser: dict[str, str]) -> None:
    answered = post(live, {**browser, "Content-Type": kind})
    assert (415, "unsupported_type") == (answered.status, answered.error["code"])
    assert kind.partition(";")[0] in answered.error["message"]
    assert answered.error["hint"] == "send the header Content-Type: application/json"
    assert answered.headers["Accept"] == "application/json"


def test_a_body_without_a_type_is_refused(live: Live) -> None:
    answered = live.raw(b"POST /take HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
    assert answered.startswith(b"HTTP/1.1 415 ")
    assert b"the Content-Type is missing" in answered


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:2020",
        "127.0.0.1:1",
        "127.1.2.3",
        "[::1]:2020",
        "10.0.0.1",
        "a.localhost",
        "localhost.",
        "proxy.example.org",
        "Proxy.Example.org:8080",
    ],
)
def test_names_of_this_machine_are_accepted(live: Live, host: str) -> None:
    assert 200 == live.ask("/watcher", headers={"Host": host}).status


@pytest.mark.parametrize(
    "host",
    ["evil.test", "localhost.evil.test", "127.0.0.1.nip.io", "notlocalhost", "", "[evil]", "127.0.0.1x", "a:b:c"],
)
@pytest.mark.parametrize("path", ["/", "/watcher", "/healthz", "/nowhere"])
def test_other_names_are_refused_on_loopback(live: Live, host: str, path: str) -> None:
    """The name of a page that resolves to 127.0.0.1 is in the Host header."""
    answered = live.ask(path, headers={"Host": host})
    assert (421, "wrong_host") == (answered.status, answered.error["code"])


def test_without_a_host_the_client_is_not_a_browser(live: Live) -> None:
    assert live.raw(b"GET /watcher HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200")


def test_hosts_are_checked_only_on_loopback() -> None:
    """In a cluster, the service has the names of its Service."""
    assert local_hosts("0.0.0.0") is None
    assert isinstance(local_hosts("::1"), LocalHosts)
    assert isinstance(local_hosts("localhost"), LocalHosts)
    with Live(hosts=local_hosts("0.0.0.0")) as live:
        assert 200 == live.ask("/watcher", headers={"Host": "load-watcher.load-watcher.svc"}).status


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "deflate", "br", "zstd", "identity, gzip", ""])
@pytest.mark.parametrize(("method", "path"), [("POST", "/take"), ("GET", "/watcher"), ("GET", "/x"), ("PUT", "/take")])
def test_compressed_requests_are_refused(live: Live, coding: str, method: str, path: str) -> None:
    """Broken or not, on each path, with each method."""
    answered = live.ask(path, method=method, headers={"Host": "localhost", "Content-Encoding": coding}, body=b"x")
    assert (415, "unsupported_encoding") == (answered.status, answered.error["code"])


def test_identity_is_not_a_compression(live: Live) -> None:
    assert 200 == post(live, {"Content-Encoding": "Identity", **JSON}).status
