"""Text in UTF-8, TOML, and whole numbers in a text."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec


def decode_text(data: bytes) -> str:
    """The text of bytes in UTF-8, without the byte order mark that editors of Windows may write. Raises
    msgspec.DecodeError."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8 at byte {error.start}") from None


def read_text(path: Path) -> str:
    """The text of a file in UTF-8. Raises OSError and msgspec.DecodeError."""
    return decode_text(path.read_bytes())


def decode_toml(text: str) -> dict[str, Any]:
    """The document of a text in TOML. Raises msgspec.DecodeError with line and column."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise msgspec.DecodeError(str(error)) from None
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    except ValueError:
        raise msgspec.DecodeError("it has an integer of more than 4,300 digits") from None


def whole_number(text: str) -> int | None:
    """The number that ASCII digits denote, at most 18 of them; None for another text. int() also accepts signs,
    underscores and the digits of other scripts, and raises ValueError for more than 4,300 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
