"""Decodes JSON of other programs: every problem of the text is a msgspec.DecodeError."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")


@overload
def decode_json(body: bytes | str) -> Any: ...
@overload
def decode_json(body: bytes | str, *, type: type[T]) -> T: ...
def decode_json(body: bytes | str, *, type: Any = Any) -> Any:
    """The decoded JSON. Raises msgspec.DecodeError, also for text that is not UTF-8 or is nested too deeply."""
    try:
        return msgspec.json.decode(body, type=type)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError("the JSON is not valid UTF-8") from error
    except RecursionError as error:
        raise msgspec.DecodeError("the JSON is nested too deeply") from error
