"""Parsing and formatting of pod selections: `agents.pods`, `qrms.pods`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from watcher.core.config import addresses, values
from watcher.core.config.values import InvalidValue, ValueKind
from watcher.core.messages import nearest
from watcher.core.pods.selector import SELECTOR_EXAMPLE, PodSelection, check_selector, is_namespace
from watcher.decoding.json_text import decode_json

_KEYS = tuple(each.name for each in fields(PodSelection))
_PORT = values.integer(lowest=1, highest=65535)


def pods(*, port: int) -> ValueKind:
    """Return the kind of a pod selection by labels; `port` is the default of its key `port`."""

    def read(value: Any) -> PodSelection:
        return _selection({"selector": value} if isinstance(value, str) else value, port=port)

    def read_text(text: str) -> PodSelection:
        if not text.lstrip().startswith("{"):
            return read(text)
        try:
            return read(decode_json(text))
        except ValueError as error:
            raise InvalidValue(str(error) if isinstance(error, InvalidValue) else f"invalid JSON: {error}") from None

    return ValueKind(
        f'a label selector, like "{SELECTOR_EXAMPLE}", or a table, like {{ selector = "{SELECTOR_EXAMPLE}", '
        f'namespace = "load-watcher-agent", port = {port} }} (environment: the same as JSON)',
        read,
        text=read_text,
        write=lambda selection: _write(selection, port=port),
        brief=f"label selector, or table with {', '.join(_KEYS)}; environment: the selector, or JSON",
        schema={
            "type": ["string", "object"],
            "pattern": values.TEXT.schema["pattern"],
            "properties": {key: (_PORT if key == "port" else values.TEXT).schema for key in _KEYS},
            "required": ["selector"],
            "additionalProperties": False,
        },
    )


def _selection(given: object, *, port: int) -> PodSelection:
    if not isinstance(given, dict):
        raise InvalidValue
    if unknown := next((key for key in given if key not in _KEYS), None):
        near = nearest(unknown, _KEYS)
        raise InvalidValue(
            f"unknown key {unknown!r}; " + (f"did you mean {near}?" if near else f"known keys: {', '.join(_KEYS)}")
        )
    if "selector" not in given:
        raise InvalidValue("it has no selector, and would select every pod")
    part = {key: _part(key, value) for key, value in given.items()}
    return PodSelection(**{"port": port, **part})


def _part(key: str, value: Any) -> Any:
    kind = _PORT if key == "port" else values.TEXT
    try:
        read = kind.read(value)
    except InvalidValue as unfit:
        raise InvalidValue(
            f"its {key} must be {kind.accepts}; {str(unfit) or f'given {values.describe(value)}'}"
        ) from None
    if key == "selector":
        try:
            check_selector(read)
        except ValueError as error:
            raise InvalidValue(f"its selector {values.describe(value)} is not a label selector: {error}") from None
    if key == "namespace" and not is_namespace(read):
        raise InvalidValue(f"its namespace {values.describe(value)} is not a valid namespace name")
    if key == "tls_server_name" and not _is_host(read):
        raise InvalidValue(f"its tls_server_name {values.describe(value)} is not a host name")
    return read


def _is_host(text: str) -> bool:
    """Whether `text` is exactly the host of a URL: a host name or an IPv4 address, without port or path."""
    try:
        return addresses.ADDRESS.read(f"https://{text}") == f"https://{text}" and not set(text) & set("/:@")
    except InvalidValue:
        return False


def _write(selection: PodSelection, *, port: int) -> str:
    defaults: Mapping[str, Any] = {"port": port, "namespace": "", "tls_server_name": ""}
    changed = {name: getattr(selection, name) for name in _KEYS if getattr(selection, name) != defaults.get(name)}
    if changed.keys() == {"selector"}:
        return values.write_text(selection.selector)
    written = (f"{name} = {value if name == 'port' else values.write_text(value)}" for name, value in changed.items())
    return f"{{ {', '.join(written)} }}"
