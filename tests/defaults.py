"""The defaults of a class, for tables that state each documented one once."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec


def defaults(kind: type[Any]) -> dict[str, bool | int | float]:
    """The fields of a dataclass or Struct whose default is a number or a truth value."""
    fields: Any = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else msgspec.structs.fields(kind)
    return {each.name: each.default for each in fields if isinstance(each.default, bool | int | float)}
