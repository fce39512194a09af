"""JSON and MessagePack, also as decoders of one type for many texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

import msgspec

T = TypeVar("T")
Encoded = bytes | bytearray | memoryview | msgspec.Raw | str


class JsonDecoder(Generic[T]):
    """A decoder of one type, for many texts. With `strict` false, numbers may be written as strings."""

    __slots__ = ("_decode",)

    @overload
    def __init__(self, type: type[T], *, strict: bool = True) -> None: ...
    @overload
    def __init__(self: JsonDecoder[Any], type: Any, *, strict: bool = True) -> None: ...  # a union
    def __init__(self, type: Any, *, strict: bool = True) -> None:
        self._decode: Callable[[Encoded], T] = msgspec.json.Decoder(type, strict=strict).decode

    def decode(self, text: Encoded) -> T:
        """The decoded JSON. Raises msgspec.DecodeError, and msgspec.ValidationError for another type."""
        try:
            return self._decode(text)
        except (UnicodeError, RecursionError, TypeError) as error:
            raise _problem(error, "JSON") from error


@overload
def decode_json(text: Encoded) -> Any: ...
@overload
def decode_json(text: Encoded, *, type: type[T]) -> T: ...
def decode_json(text: Encoded, *, type: Any = Any) -> Any:
    """The decoded JSON. Raises msgspec.DecodeError, and msgspec.ValidationError for another type."""
    try:
        return msgspec.json.decode(text, type=type)
    except (UnicodeError, RecursionError, TypeError) as error:
        raise _problem(error, "JSON") from error


def decode_msgpack(data: bytes, *, type: type[T]) -> T:
    """The decoded MessagePack. Raises msgspec.DecodeError, and msgspec.ValidationError for another type."""
    try:
        return msgspec.msgpack.decode(data, type=type)
    except (UnicodeError, RecursionError, TypeError) as error:
        raise _problem(error, "MessagePack") from error


def _problem(error: Exception, what: str) -> msgspec.DecodeError:
    if isinstance(error, TypeError):  # a column of SQLite can have values of any type
        return msgspec.DecodeError(f"it is not {what}")
    nested = isinstance(error, RecursionError)
    return msgspec.DecodeError(f"the {what} is {'nested too deeply' if nested else 'not valid UTF-8'}")
