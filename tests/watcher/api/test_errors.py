"""For any request, the response is JSON in one format, names the problem, and contains no internals."""

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.service import HEALTHY, FakeService, Live, Protection
from watcher.api.routes import make_app
from watcher.api.telemetry import Telemetry
from watcher.core.publishing.wire import ErrorDocument
from watcher.model import ProviderHealth
from watcher.platform.http.openapi import Operation, ResponseSpec
from watcher.platform.http.parameters import BadParameter, path_segment, query_values
from watcher.platform.http.routing import Access, ApiError, Route, Router


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live() as running:
        yield running


def raw_error(live: Live, request_line: bytes) -> tuple[int, dict[str, str]]:
    """Status and error of a request in raw bytes."""
    answer = live.raw(request_line + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head
    error = json.loads(body)["error"]
    assert {"code", "message", "hint"} == set(error)
    return int(head.split()[1]), error


# --- parameters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "message", "hint"),
    [
        ("window=1h", "unknown window '1h'", "known: 5m, 10m, 15m"),
        ("window=15M", "unknown window '15M'", "did you mean 15m? known: 5m, 10m, 15m"),
        ("window=", "unknown window ''", "known: 5m, 10m, 15m"),
        ("type=cpu", "unknown type 'cpu'", "did you mean CPU?"),
        ("type=CPU&type=memroy", "unknown type 'memroy'", "did you mean Memory?"),
        ("operator=avg", "unknown operator 'avg'", "did you mean AVG?"),
        ("operator=P96", "unknown operator 'P96'", "known: Latest, AVG, STD, MAX, P50, P90, P95, P99"),
        ("shape=KEP", "unknown shape 'KEP'", "did you mean kep? known: watcher, kep"),
        ("shape=kep&shape=kep", "parameter 'shape' is given 2 times", "specify it once"),
        ("window=5m&window=10m", "parameter 'window' is given 2 times", "specify it once"),
        (
            "widnow=5m",
            "unknown parameter 'widnow'",
            "did you mean window? known: window, host, type, operator, horizon",
        ),
        ("Host=a", "unknown parameter 'Host'", "did you mean host?"),
        ("_=1700000000", "unknown parameter '_'", "known: window, host, type, operator, horizon, shape"),
        ("type=%ff", "the query string is not UTF-8", ""),
        ("type", "unknown type ''", "known: CPU"),
    ],
)
def test_an_unknown_value_is_an_error_with_the_known_ones(live, query, message, hint):
    """If a misspelt parameter were ignored, the response would be for another request."""
    answer = live.ask(f"/watcher?{query}")

    assert (400, "bad_request") == (answer.status, answer.error["code"])
    assert message == answer.error["message"]
    assert answer.error["hint"].startswith(hint) or hint in answer.error["hint"]


def test_invalid_parameters_are_an_error_before_the_first_snapshot():
    """Unknown names of parameters are found without a snapshot, unknown types are not."""
    with Live(FakeService(published=None)) as live:
        assert "bad_request" == live.ask("/watcher?widnow=5m").error["code"]


def test_too_many_parameters_are_an_error(live):
    """Reading them must stay cheap."""
    answer = live.ask("/watcher?" + "&".join(["type=CPU"] * 6000))

    assert (400, "bad_request") == (answer.status, answer.error["code"])
    assert "5000" in answer.error["message"]


# --- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/watchr", "did you mean /watcher?"),
        ("/WATCHER", "did you mean /watcher?"),
        ("/health", "did you mean /healthz?"),
        ("/api/v1/colums", "did you mean /api/v1/columns?"),
        ("/watcher/node-1/x", "/openapi.json lists all paths"),
        ("/watcher/../watcher", "/openapi.json lists all paths"),
        ("/..", "/openapi.json lists all paths"),
        ("/%2e%2e/%2e%2e/etc/passwd", "/openapi.json lists all paths"),
        ("/static/index.html", "/openapi.json lists all paths"),
        ("/%00", "/openapi.json lists all paths"),
    ],
)
def test_unknown_paths_are_not_found(live, path, hint):
    """With the most similar path."""
    answer = live.ask(path)

    assert (404, "not_found") == (answer.status, answer.error["code"])
    assert hint in answer.error["hint"]


HOSTILE = {
    "long": b"a" * 10_000,
    "long and encoded": b"%41" * 10_000,
    "NUL": b"%00",
    "newline": b"a%0d%0aSet-Cookie:%20x=y",
    "parent": b"..",
    "encoded parent": b"%2e%2e",
    "encoded slash": b"a%2Fb",
    "unicode": "ünïcödé☃".encode(),
    "encoded unicode": quote("ünïcödé☃😀\u202e").encode(),
    "half a percent": b"%",
    "no hexadecimal": b"%zz%1",
    "script": b"%3Cscript%3Ealert(1)%3C/script%3E".replace(b"/", b"%2F"),
    "quotes": b"%22%27%5C",
    "surrogates": b"%ed%a0%80",
    "template": b"{host}",
    "spaces": b"%20%09%20",
}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("before", [b"/watcher/", b"/watcher?host=", b"/watcher?type=", b"/watcher?", b"/"])
def test_hostile_names_get_a_short_error(live, before, name):
    """Valid JSON of moderate length, 4xx, with the name shortened and escaped."""
    status, error = raw_error(live, b"GET " + before + name)

    assert status in (400, 404)
    assert len(error["message"]) < 400
    assert all(character.isprintable() for character in error["message"] + error["hint"])


@pytest.mark.parametrize("name", [b"%ff", b"%c3%28", b"a%80"])
def test_a_name_that_is_not_utf_8_is_an_error(live, name):
    """It is not a valid name of a node."""
    assert (400, "bad_request") == (lambda found: (found[0], found[1]["code"]))(
        raw_error(live, b"GET /watcher/" + name)
    )


@pytest.mark.parametrize("read", [path_segment, lambda text: query_values(f"host={text}", known=("host",))])
def test_half_a_surrogate_pair_is_an_error(read):
    """A parser that passes bytes on may produce it, and it cannot be written into a response."""
    with pytest.raises(BadParameter, match="UTF-8"):
        read("a\udcff")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60).map(lambda text: re.sub(rb"[\s?#]", b"", text)))
def test_any_path_gets_json_and_no_5xx(live, path):
    """Any bytes after the slash."""
    status, _ = raw_error(live, b"GET /watcher/" + b"-" + path)

    assert status in (400, 404)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_any_query_gets_json_and_no_5xx(live, text):
    """Any text as a value, a name, or the whole query."""
    for query in (f"host={quote(text)}x", quote(text) + "x", quote(text, safe="&=;+%[]") + "x=1"):
        answer = live.ask(f"/watcher?{query}")
        assert answer.status in (400, 404)
        assert answer.error["message"]


# --- methods ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/watcher", "/watcher/node-1", "/watcher/health", "/healthz", "/api/v1/columns"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
def test_other_methods_are_refused_with_the_allowed_ones(live, path, method):
    """The original served a DELETE like a GET."""
    answer = live.ask(path, method=method)

    assert (405, "method_not_allowed") == (answer.status, answer.error["code"])
    assert "GET, HEAD" == answer.headers["Allow"]


# --- invalid HTTP ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /watcher HTTP/9.9\r\n\r\n",
        b"GET /watcher\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /watcher HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /watcher HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    ],
    ids=["garbage", "TLS", "version", "path", "header", "length", "long line", "long header"],
)
def test_a_request_that_cannot_be_parsed_gets_an_error_in_the_same_format(live, sent, caplog):
    """Without a traceback in the log, which any client could fill."""
    with caplog.at_level(logging.INFO):
        head, _, body = live.raw(sent).partition(b"\r\n\r\n")

    assert b"400" == head.split()[1]
    assert b"application/json" in head
    assert "bad_request" == json.loads(body)["error"]["code"]
    assert [] == caplog.records


@pytest.mark.parametrize(
    ("request_line", "status"),
    [(b"GET http://x/watcher/nope", 404), (b"OPTIONS *", 404), (b"GET /watcher/nope?#/watcher", 404)],
)
def test_other_forms_of_the_target_are_accepted(live, request_line, status):
    """Proxies send the whole URL."""
    assert status == raw_error(live, request_line)[0]


def test_the_absolute_form_is_served(live):
    """Like the path."""
    answer = live.raw(b"GET http://other:1/watcher/node-1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 200 OK")


# --- internal errors -------------------------------------------------------------------------------------------------


def failing(error: Exception) -> Route:
    async def handler(request, captured):
        raise error

    return Route("/fails", "fails", handler, Operation("Fails", {200: ResponseSpec("never")}), access=Access.OPEN)


def test_an_internal_error_is_logged_and_not_shown(caplog):
    """The client gets the failure, the log its cause."""
    with Live(routes=[failing(RuntimeError("the password is hunter2"))]) as live:
        answer = live.ask("/fails")
        assert 200 == live.ask("/watcher").status

    assert (500, "internal") == (answer.status, answer.error["code"])
    assert b"hunter2" not in answer.body
    assert b"Traceback" not in answer.body
    assert ["request failed in fails"] == [record.getMessage() for record in caplog.records]
    assert "hunter2" in str(caplog.records[0].exc_info)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ApiError(418, "teapot", "short and stout"), 418, "teapot"),
        (web.HTTPRequestEntityTooLarge(1, 2), 413, "too_large"),
        (web.HTTPForbidden(), 403, "forbidden"),
    ],
)
def test_errors_of_handlers_have_the_same_format(error, status, code):
    """Also those that aiohttp raises while a handler reads a body."""
    with Live(routes=[failing(error)]) as live:
        answer = live.ask("/fails")

    assert (status, code) == (answer.status, answer.error["code"])


# --- tokens ----------------------------------------------------------------------------------------------------------

ALL = ["/watcher", "/watcher/node-1", "/watcher/health", "/api/v1/columns", "/api/v1/history?host=node-1"]
ALL += ["/api/v1/overview", "/api/v1/findings", "/metrics", "/openapi.json"]


@pytest.fixture(scope="module")
def protected() -> Iterator[Live]:
    with Live(protection=Protection("sëcret", protect_reads=True)) as running:
        yield running


@pytest.mark.parametrize("path", ALL)
@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer wrong", "Basic sëcret", "sëcret", "Bearer sëcretx", b"Bearer s\xff"]
)
def test_protected_reads_need_the_token(protected, path, authorization):
    """All except the probes; the response names the header."""
    sent = authorization.encode() if isinstance(authorization, str) else authorization
    answer = protected.ask(path, headers={} if sent is None else {"Authorization": sent})

    assert (401, "unauthorized") == (answer.status, answer.error["code"])
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert b"cret" not in answer.body


@pytest.mark.parametrize("path", ALL)
@pytest.mark.parametrize("authorization", ["Bearer sëcret", "bearer  sëcret "])
def test_the_token_gives_access_to_all_paths(protected, path, authorization):
    """The case of the scheme does not matter."""
    assert 200 == protected.ask(path, headers={"Authorization": authorization.encode()}).status


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_need_no_token(protected, path):
    """The kubelet has no token."""
    assert 200 == protected.ask(path).status


def test_probes_show_addresses_only_to_readers():
    """Reasons of the source and of the database contain addresses, which protect_reads hides."""
    reason = "GET http://user@10.1.2.3:9090/api: connection refused"
    service = FakeService(published=None, provider_health=ProviderHealth(False, reason, 1.0), missing="")
    service.status = replace(HEALTHY, ok=False, error="postgresql://10.4.5.6")
    with Live(service, protection=Protection("secret", protect_reads=True)) as live:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            answer = live.ask("/readyz", headers=headers)
            assert (503, "no_metrics") == (answer.status, answer.error["code"])
            assert b"10." not in answer.body
            assert "server.token_file" in answer.error["hint"]
        shown = live.ask("/readyz", headers={"Authorization": "Bearer secret"})
        assert b"10.1.2.3" in shown.body
        assert b"10.4.5.6" in shown.body
    with Live(service) as live:
        assert b"10.1.2.3" in live.ask("/readyz").body


def test_a_token_without_protect_reads_protects_no_reads():
    """It is for requests that change state."""
    with Live(protection=Protection("secret")) as live:
        assert 200 == live.ask("/watcher").status


def changing() -> Route:
    async def handler(request, captured):
        return web.Response(body=await request.read())

    operation = Operation("Changes something", {200: ResponseSpec("done")})
    return Route("/change/{what}", "change", handler, operation, method="POST", access=Access.WRITE)


def test_requests_that_change_state_always_need_the_token():
    """Without a token they are refused."""
    with Live(routes=[changing()]) as live:
        answer = live.ask("/change/it", method="POST", body=b"x")
        assert (403, "forbidden") == (answer.status, answer.error["code"])
        assert "token_file" in answer.error["hint"]
    with Live(routes=[changing()], protection=Protection("secret")) as live:
        assert 401 == live.ask("/change/it", method="POST", body=b"x").status
        answer = live.ask("/change/it", method="POST", body=b"x", headers={"Authorization": "Bearer secret"})
        assert (200, b"x") == (answer.status, answer.body)
        assert "POST" == live.ask("/change/it").headers["Allow"]


def test_a_changed_token_is_valid_from_then_on():
    """Settings are read again while the service runs."""
    protection = Protection("old", protect_reads=True)
    with Live(protection=protection) as live:
        assert 200 == live.ask("/watcher", headers={"Authorization": "Bearer old"}).status
        protection.token = "new"
        assert 401 == live.ask("/watcher", headers={"Authorization": "Bearer old"}).status
        assert 200 == live.ask("/watcher", headers={"Authorization": "Bearer new"}).status


def test_protect_reads_without_a_token_is_an_error_at_the_start():
    with pytest.raises(ValueError, match="token"):
        make_app(
            FakeService().view,
            settings=Protection(None, protect_reads=True),
            telemetry=Telemetry(version="1"),
            version="1",
        )


# --- the table of routes ---------------------------------------------------------------------------------------------


def named(path: str, name: str, *, method: str = "GET") -> Route:
    async def handler(request, captured):
        return web.json_response([name, *captured])

    return Route(
        path, name, handler, Operation(name, {200: ResponseSpec("its name")}), method=method, access=Access.OPEN
    )


def test_routes_of_other_packages_are_matched_by_the_same_rules():
    """Several parameters, several methods on one path, a path without parameters before one with parameters."""
    routes = [
        named("/x/{a}/nodes/{b}", "two"),
        named("/x/{a}/nodes", "one"),
        named("/x/{a}/filter", "post", method="POST"),
        named("/x/{a}/filter", "get"),
        named("/x/plugins", "literal"),
        named("/x/{a}", "last"),
    ]
    with Live(routes=routes) as live:
        assert ["two", "p", "n/1"] == live.ask("/x/p/nodes/n%2F1").json()
        assert ["one", "p"] == live.ask("/x/p//nodes/").json()
        assert ["get", "p"] == live.ask("/x/p/filter").json()
        assert ["post", "p"] == live.ask("/x/p/filter", method="POST", body=b"{}").json()
        assert "GET, HEAD, POST" == live.ask("/x/p/filter", method="PUT").headers["Allow"]
        assert ["literal"] == live.ask("/x/plugins").json()
        assert ["last", "p"] == live.ask("/x/p").json()
        assert ["last", "nodes"] == live.ask("/x//nodes").json()  # no parameter may be empty
        assert 404 == live.ask("/x").status
        assert 404 == live.ask("/x/p/nodes/a/b").status


def test_two_routes_with_one_path_and_method_are_an_error():
    with pytest.raises(ValueError, match="two routes for GET /a: first and second"):
        Router([named("/a", "first"), named("/a", "second")], protection=Protection(), meter=Telemetry(version="1"))


def test_the_format_of_errors_is_that_of_the_model():
    """msgspec types are the only definition of the JSON."""
    body = ApiError(404, "a", "b", "c").response().body
    assert isinstance(body, bytes)

    assert {"error": {"code": "a", "message": "b", "hint": "c"}} == json.loads(body)
    assert {"error"} == set(ErrorDocument.__struct_fields__)
