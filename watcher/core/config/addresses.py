"""Kinds of values: addresses, database URLs, and HTTP headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from watcher.core.config.values import (
    HIDDEN,
    PATH,
    InvalidValue,
    Secret,
    ValueKind,
    _read_secret,
    _read_text,
    describe,
    hide_credentials,
    list_of,
    write_text,
)
from watcher.decoding.json_text import decode_json


def _read_address(value: Any) -> str:
    text = _read_text(value)
    try:
        parts = urlsplit(text)
        usable = parts.scheme.lower() in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
    except ValueError:  # invalid port, or unbalanced bracket
        usable = None
    if not usable or re.search(r"[\s\x00-\x1f\x7f\\]", text):
        raise InvalidValue(f"given {write_text(hide_credentials(text))}")
    if parts.query or parts.fragment:
        raise InvalidValue(
            "given an address with a query or fragment; put secrets into provider.token or provider.headers"
        )
    return text.rstrip("/")


ADDRESS = ValueKind(
    'an http:// or https:// address with a host, like "http://prometheus.monitoring:9090"',
    _read_address,
    {"type": "string", "pattern": r"^\s*[Hh][Tt][Tt][Pp][Ss]?://[^\s\\?#]+\s*$"},
    write=lambda address: write_text(hide_credentials(address)),
    private=True,
    brief="http:// or https:// address",
)


def _read_peer(value: Any) -> str:
    if "@" in (address := _read_address(value)):
        raise InvalidValue("given an address with a user; use the token file of this table")
    return address


PEER = replace(ADDRESS, read=_read_peer)
AUTHORITIES = PATH.like('"/etc/load-watcher/tls/ca.crt"')


def peers(example: str) -> ValueKind:
    """Return the kind of addresses of other components."""
    return list_of(PEER, called=f'addresses, like ["{example}"]', may_be_empty=True)


def _read_database(value: Any) -> str:
    text = _read_text(value)
    if is_server(text):
        return _read_server(text)
    path = text.removeprefix("sqlite:///").partition("?")[0]
    if not text.startswith("sqlite:///") or not path:
        raise InvalidValue(f"given {write_text(hide_credentials(text))}")
    if path == ":memory:":
        raise InvalidValue("an in-memory database would be lost at a restart")
    return text


def is_server(url: str) -> bool:
    """Whether a database URL is that of a PostgreSQL server, not of an SQLite file."""
    return re.match(r"postgres(ql)?(\+\w+)?:", url) is not None


def _read_server(text: str) -> str:
    scheme, _, rest = text.partition("://")
    if scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise InvalidValue(f"given the scheme {scheme}://; PostgreSQL is accessed with psycopg, use postgresql://")
    host, _, database = rest.rpartition("@")[2].partition("?")[0].partition("/")
    if not host or not database:
        raise InvalidValue(f"given {write_text(hide_credentials(text))}, without a {'database' if host else 'host'}")
    if re.search(r"\s", text):
        raise InvalidValue("it contains a space")
    return text


def has_password(url: str) -> bool:
    """Whether a database URL contains a password."""
    return ":" in url.partition("://")[2].rpartition("@")[0]


DATABASE = ValueKind(
    'a database URL: of a file, like "sqlite:///load-watcher.db" (relative to the working directory) or '
    '"sqlite:////var/lib/load-watcher/load-watcher.db", or of a server, like "postgresql://watcher@db.example/watcher"',
    _read_database,
    write=lambda url: write_text(hide_credentials(url)),
    private=True,
    brief="sqlite:///relative/path, sqlite:////absolute/path or postgresql://user@host/database",
    schema={"type": "string", "pattern": r"^\s*(sqlite:///[^?]|postgres(ql(\+psycopg)?)?://\S+/\S)"},
)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token of RFC 9110, section 5.6.2


def _read_headers(value: Any) -> dict[str, Secret]:
    if not isinstance(value, dict):
        raise InvalidValue
    headers = {}
    for name, content in value.items():
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidValue(f"{write_text(name)} is not a valid header name")
        try:
            headers[name] = _read_secret(content)
        except InvalidValue as unfit:
            detail = str(unfit) or f"given {describe(content, private=True)}"
            raise InvalidValue(f"the value of {name} must be text; {detail}") from None
    return headers


def _read_headers_text(text: str) -> dict[str, Secret]:
    if text.lstrip().startswith("{"):
        try:
            return _read_headers(decode_json(text))
        except ValueError as error:
            if isinstance(error, InvalidValue):
                raise
            raise InvalidValue("it starts with { but is not valid JSON") from None
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if not all(equals for _, equals, _ in pairs):
        raise InvalidValue("an item has no =")
    return _read_headers({name.strip(): content.strip() for name, _, content in pairs})


def _write_headers(headers: Mapping[str, Secret]) -> str:
    pairs = ", ".join(f"{write_text(name)} = {write_text(HIDDEN)}" for name in headers)
    return f"{{ {pairs} }}" if pairs else "{}"


HEADERS = ValueKind(
    'a table of texts, like { "X-Scope-OrgID" = "team-a" } (environment: JSON, or name=value,name=value)',
    _read_headers,
    text=_read_headers_text,
    write=_write_headers,
    private=True,
    brief="table of texts; environment: JSON, or name=value,name=value",
    schema={"type": "object", "additionalProperties": {"type": "string", "minLength": 1}},
)
