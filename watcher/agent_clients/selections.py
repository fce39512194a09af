"""Parsing and formatting of pod selections: `agents.pods`, `qrms.pods`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from watcher.core.config.records import read_record, schema_of, text_of_json, write_record
from watcher.core.config.values import ValueKind, write_text
from watcher.core.pods.selector import SELECTOR_EXAMPLE, PodSelection

_KEYS = ", ".join(each.name for each in fields(PodSelection))


def pods(*, port: int) -> ValueKind:
    """Return the kind of a pod selection by labels; `port` is the default of its key `port`."""

    def read(value: Any) -> PodSelection:
        given = {"selector": value} if isinstance(value, str) else value
        given = {"port": port, **given} if isinstance(given, dict) else given
        return read_record(PodSelection, given, called="the selection")

    def write(selection: PodSelection) -> str:
        alone = selection == PodSelection(selection.selector, port)
        return write_text(selection.selector) if alone else write_record(selection, port=port)

    of_json = text_of_json(read)
    return ValueKind(
        f'a label selector, like "{SELECTOR_EXAMPLE}", or a table, like {{ selector = "{SELECTOR_EXAMPLE}", '
        f'namespace = "load-watcher-agent", port = {port} }} (environment: the same as JSON)',
        read,
        {**schema_of(PodSelection), "type": ["string", "object"], "pattern": r"\S", "required": ["selector"]},
        text=lambda text: of_json(text) if text.lstrip().startswith("{") else read(text),
        write=write,
        brief=f"label selector, or table with {_KEYS}; environment: the selector, or JSON",
    )
