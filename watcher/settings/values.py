"""How one value is read and written, whoever gives it.

The same setting may come as a TOML value (`interval = "60s"`, `interval = 60`), as text from the environment or from a
flag (`60s`), and must go back as TOML for `config show`. A `Kind` holds these three beside the words that say what is
accepted, so that a problem, the documentation and the parser cannot disagree. What a kind cannot read it refuses with
`Unfit`, never with anything else. Values marked private are never quoted back.
"""

from __future__ import annotations

import datetime
import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HIDDEN = "<hidden>"


class Secret:
    """A text that only `reveal()` gives out. No dataclass: `dataclasses.asdict` would open it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the one place that sends it."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class Unfit(ValueError):
    """This value is not of the kind. The text says what exactly is wrong where the kind alone does not tell."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of one kind are read and written.

    `accepts` completes "must be …", `brief` is the same for a table in the documentation. `read` takes a TOML value,
    `read_text` text from the environment or a flag; both raise Unfit and nothing else. `write` gives a TOML literal,
    with everything secret hidden. `private` values are not quoted in problems.
    """

    accepts: str
    read: Callable[[Any], Any]
    read_text: Callable[[str], Any]
    write: Callable[[Any], str]
    private: bool = False
    brief: str = ""


# --- naming what was given -------------------------------------------------------------------------------------------


def hide_credentials(text: str) -> str:
    """An address or database URL without what may be secret in it: all before the last @, and all after ? or #.

    Hides rather too much: a password may itself hold @, / or ?, and the text may be no URL at all.
    """
    before, at, after = text.rpartition("@")
    if at:
        scheme = re.match(r"(https?|postgres(ql)?(\+\w+)?|sqlite)://", before, re.ASCII | re.IGNORECASE)
        text = f"{scheme[0] if scheme else ''}{HIDDEN}@{after}"
    return re.sub(r"([?#]).+", rf"\1{HIDDEN}", text, flags=re.DOTALL)


def describe(value: object, *, private: bool = False) -> str:
    """A given value in the words of TOML, short enough for a line; of a private one only what it is."""
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "a table"}
    if private or isinstance(value, (list, dict)):
        return kinds.get(type(value), "something else")
    if isinstance(value, (datetime.date, datetime.time)):
        return "a date or time"
    if isinstance(value, str):
        safe = hide_credentials(value) if "//" in value else value
        return write_text(safe if len(safe) <= 80 else safe[:77] + "…")
    return _number_in_words(value) if type(value) in (int, float) else str(value).lower()


def _number_in_words(value: Any) -> str:
    # str() of an integer of thousands of digits is refused by Python itself.
    return "a very large number" if isinstance(value, int) and value.bit_length() > 200 else str(value)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` most likely meant, None if none is near. Case does not count."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None


def one_of(names: Iterable[str]) -> str:
    """Names for a sentence: "a", "b" or "c"."""
    quoted = [f'"{name}"' for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


# --- text, yes and no, numbers ---------------------------------------------------------------------------------------


def write_text(text: str) -> str:
    """A TOML basic string. Bytes that are no text (undecodable environment) are written as escapes of themselves."""
    printable = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return json.dumps(printable, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise Unfit
    text = value.strip()
    if not text:
        raise Unfit("given empty text")
    if "\0" in text:
        raise Unfit("given text with a NUL character in it")
    return text


TEXT = Kind("text", _read_text, _read_text, write_text)


def _read_name(value: Any) -> str:
    text = _read_text(value)
    if not text.isprintable() or len(text) > 253:
        raise Unfit
    return text


NAME = Kind("a name of at most 253 printable characters", _read_name, _read_name, write_text)


def _read_path(value: Any) -> Path:
    return Path(_read_text(value))


PATH = Kind("the path of a file", _read_path, _read_path, lambda path: write_text(str(path)))


def _read_secret(value: Any) -> Secret:
    if not isinstance(value, str):
        raise Unfit
    text = value.rstrip("\r\n")  # as files and Kubernetes secrets often end
    if not text:
        raise Unfit("given empty text")
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise Unfit("it has control characters in it")
    return Secret(text)


SECRET = Kind("text", _read_secret, _read_secret, lambda _: write_text(HIDDEN), private=True)

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _read_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unfit
    return value


def _read_boolean_text(text: str) -> bool:
    try:
        return _WORDS[text.strip().lower()]
    except KeyError:
        raise Unfit from None


BOOLEAN = Kind("true or false", _read_boolean, _read_boolean_text, lambda value: str(value).lower())


def whole(*, lowest: int, highest: int) -> Kind:
    """Whole numbers from `lowest` to `highest`."""

    def read(value: Any) -> int:
        if type(value) is not int or not lowest <= value <= highest:  # bool is an int to Python
            raise Unfit
        return value

    def read_text(text: str) -> int:
        if not re.fullmatch(r"\d{1,18}", text.strip(), re.ASCII):
            raise Unfit
        return read(int(text))

    return Kind(f"a whole number from {lowest} to {highest}", read, read_text, str)


def _real(accepts: str, fits: Callable[[float], bool], write: Callable[[float], str]) -> Kind:
    """A number, whole or not, that fits."""

    def read(value: Any) -> float:
        if type(value) not in (int, float) or not fits(value):
            raise Unfit
        return float(value)

    def read_text(text: str) -> float:
        try:
            return read(float(text))
        except ValueError:
            raise Unfit from None

    return Kind(accepts, read, read_text, write)


def number(*, lowest: float, highest: float) -> Kind:
    """A number, whole or not."""
    accepts = f"a number from {lowest:g} to {highest:g}"
    return _real(accepts, lambda value: lowest <= value <= highest, lambda value: f"{value:g}")


def _fraction(accepts: str, *, with_zero: bool) -> Kind:
    return _real(accepts, lambda value: 0 < value <= 1 or (with_zero and value == 0), repr)


FRACTION = _fraction("a number above 0 and at most 1", with_zero=False)
SHARE = _fraction("a number from 0 to 1", with_zero=True)


# --- durations and sizes ---------------------------------------------------------------------------------------------

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0
_DIGITS = r"\d{1,20}(?:\.\d{1,30})?"
_PARTS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_DURATION = re.compile("".join(rf"(?:({_DIGITS}){unit})?" for unit in ("d", "h", "m", "s", "ms")), re.ASCII)
_NUMBER = re.compile(_DIGITS, re.ASCII)


def read_duration(value: Any) -> float:
    """Seconds, from "60s", "15m", "1h30m", "250ms", or a number (also as text). Raises Unfit; never negative."""
    if type(value) in (int, float):
        # Compared before it is converted: a TOML integer may be too large for a float.
        if not 0 <= value <= 1e15 or math.isnan(value):
            raise Unfit
        return float(value)
    if not isinstance(value, str):
        raise Unfit
    text = value.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise Unfit
    weights = (*(Decimal(weight) for _, weight in _PARTS), Decimal("0.001"))
    return float(sum(Decimal(part) * weight for part, weight in zip(match.groups(), weights, strict=True) if part))


def write_duration(seconds: float) -> str:
    """Seconds as people write them, without loss: 900 is "15m", 5400 "1h30m", 0.25 "250ms", 1.5 "1.5s"."""
    exact = Decimal(repr(seconds)).normalize()
    if exact != int(exact):
        millis = exact * 1000
        return f"{int(millis)}ms" if exact < 1 and millis == int(millis) else f"{exact:f}s"
    rest, written = int(exact), ""
    for unit, weight in _PARTS[1:]:  # 24h is plainer than 1d
        count, rest = divmod(rest, weight)
        written += f"{count}{unit}" if count else ""
    return written or "0s"


def duration(*, lowest: float = 0, highest: float = 366 * 86400) -> Kind:
    """Seconds from `lowest` to `highest`."""

    def read(value: Any) -> float:
        seconds = read_duration(value)
        if not lowest <= seconds <= highest:
            raise Unfit
        return seconds

    bounds = f", from {write_duration(lowest)} to {write_duration(highest)}"
    accepts = f'a duration like "60s", "15m", "1h30m" or "250ms", or a number of seconds{bounds}'
    return Kind(accepts, read, read, _write_quoted_duration, brief=f"duration{bounds}")


def _write_quoted_duration(seconds: float) -> str:
    return write_text(write_duration(seconds))


def whole_seconds(*, lowest: int, highest: int) -> Kind:
    """Whole seconds, as int, from `lowest` to `highest`."""

    def read(value: Any) -> int:
        seconds = read_duration(value)
        if seconds != int(seconds) or not lowest <= seconds <= highest:
            raise Unfit
        return int(seconds)

    accepts = f'a duration of whole seconds, like "{write_duration(min(15, highest))}", from {lowest}s to {highest}s'
    return Kind(accepts, read, read, _write_quoted_duration, brief=f"whole seconds, from {lowest}s to {highest}s")


_BYTES = {"B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}
_SIZE = re.compile(rf"({_DIGITS})\s*([A-Za-z]*)", re.ASCII)


def write_size(size: int) -> str:
    """Bytes in the largest binary unit that divides them: 2147483648 is "2GiB", 1500 "1500B"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return f"{size}B"


def size(*, lowest: int) -> Kind:
    """Bytes, at least `lowest`."""

    def read(value: Any) -> int:
        if isinstance(value, str):
            value = _size_of(value)
        if type(value) is not int or not lowest <= value <= 2**60:
            raise Unfit
        return value

    accepts = f'a size like "2GiB" or "500MB", or a number of bytes, at least {write_size(lowest)}'
    brief = f"size, at least {write_size(lowest)}"
    return Kind(accepts, read, read, lambda value: write_text(write_size(value)), brief=brief)


def _size_of(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    unit = (match[2] or "B").upper().replace("I", "i") if match else ""
    if match is None or unit not in _BYTES:
        raise Unfit
    return int(Decimal(match[1]) * _BYTES[unit])


# --- names out of a fixed set, and lists -----------------------------------------------------------------------------


def choice(names: Iterable[str], *, aliases: Mapping[str, str] | None = None) -> Kind:
    """One of `names`, in any case; `aliases` are further spellings of them."""
    known = tuple(names)
    spelt = {name.casefold(): name for name in known} | dict(aliases or {})

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise Unfit
        name = spelt.get(value.strip().casefold())
        if name is None:
            guess = nearest(value, spelt)
            raise Unfit(f"given {describe(value)}" + (f'; did you mean "{spelt[guess]}"?' if guess else ""))
        return name

    return Kind(one_of(known), read, read, write_text)


def several(item: Kind, *, called: str) -> Kind:
    """A list of at least one `item`, none twice; as text separated by commas. `called` completes "a list of …"."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise Unfit
        return _distinct([_read_item(item, element) for element in value])

    def read_text(text: str) -> tuple[Any, ...]:
        return _distinct([_read_item(item, element.strip()) for element in text.split(",")])

    def write(values: Any) -> str:
        return "[" + ", ".join(item.write(value) for value in values) + "]"

    return Kind(f"a list of {called}", read, read_text, write)


def _read_item(item: Kind, element: Any) -> Any:
    try:
        return item.read(element)
    except Unfit as unfit:
        detail = str(unfit) or f"given {describe(element)}"
        raise Unfit(f"each must be {item.accepts}; {detail}") from None


def _distinct(values: list[Any]) -> tuple[Any, ...]:
    if not values:
        raise Unfit("given an empty list")
    if len(set(values)) < len(values):
        raise Unfit("one of them stands twice")
    return tuple(values)


# --- addresses, databases, headers -----------------------------------------------------------------------------------


def _read_address(value: Any) -> str:
    text = _read_text(value)
    try:
        parts = urlsplit(text)
        usable = parts.scheme.lower() in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
    except ValueError:  # a port that is no port, or a bracket that does not close
        usable = None
    if not usable or re.search(r"[\s\x00-\x1f\x7f\\]", text):
        raise Unfit(f"given {write_text(hide_credentials(text))}")
    if parts.query or parts.fragment:
        raise Unfit("given one with a query or fragment; what is secret goes into provider.token or provider.headers")
    return text.rstrip("/")


ADDRESS = Kind(
    'an http:// or https:// address with a host, like "http://prometheus.monitoring:9090"',
    _read_address,
    _read_address,
    lambda address: write_text(hide_credentials(address)),
    private=True,
    brief="http:// or https:// address",
)


def _read_database(value: Any) -> str:
    text = _read_text(value)
    if is_server(text):
        return _read_server(text)
    path = text.removeprefix("sqlite:///").partition("?")[0]
    if not text.startswith("sqlite:///") or not path:
        raise Unfit(f"given {write_text(hide_credentials(text))}")
    if path == ":memory:":
        raise Unfit("a database in memory would keep nothing over a restart")
    return text


def is_server(url: str) -> bool:
    """Whether a database URL names a server, PostgreSQL, and not a file."""
    return re.match(r"postgres(ql)?(\+\w+)?:", url) is not None


def _read_server(text: str) -> str:
    scheme, _, rest = text.partition("://")
    if scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise Unfit(f"PostgreSQL is spoken to through psycopg; write postgresql:// and not {scheme}://")
    host, _, database = rest.rpartition("@")[2].partition("?")[0].partition("/")
    if not host or not database:
        raise Unfit(f"given {write_text(hide_credentials(text))}, which names no {'database' if host else 'host'}")
    if re.search(r"\s", text):
        raise Unfit("it has a space in it")
    return text


def has_password(url: str) -> bool:
    """Whether a database URL has a password in it."""
    return ":" in url.partition("://")[2].rpartition("@")[0]


DATABASE = Kind(
    'a database URL: of a file, like "sqlite:///load-watcher.db" (relative to the working directory) or '
    '"sqlite:////var/lib/load-watcher/load-watcher.db", or of a server, like "postgresql://watcher@db.example/watcher"',
    _read_database,
    _read_database,
    lambda url: write_text(hide_credentials(url)),
    private=True,
    brief="sqlite:///relative/path, sqlite:////absolute/path or postgresql://user@host/database",
)

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token of RFC 9110, section 5.6.2


def _read_headers(value: Any) -> dict[str, Secret]:
    if not isinstance(value, dict):
        raise Unfit
    headers = {}
    for name, content in value.items():
        if not _HEADER_NAME.fullmatch(name):
            raise Unfit(f"{write_text(name)} is no name for a header")
        try:
            headers[name] = _read_secret(content)
        except Unfit as unfit:
            detail = str(unfit) or f"given {describe(content, private=True)}"
            raise Unfit(f"the value of {name} must be text; {detail}") from None
    return headers


def _read_headers_text(text: str) -> dict[str, Secret]:
    if text.lstrip().startswith("{"):
        try:
            return _read_headers(json.loads(text))
        except (ValueError, RecursionError) as error:
            if isinstance(error, Unfit):
                raise
            raise Unfit("it begins like JSON and is none") from None
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if not all(equals for _, equals, _ in pairs):
        raise Unfit("one of them has no =")
    return _read_headers({name.strip(): content.strip() for name, _, content in pairs})


def _write_headers(headers: Mapping[str, Secret]) -> str:
    pairs = ", ".join(f"{write_text(name)} = {write_text(HIDDEN)}" for name in headers)
    return f"{{ {pairs} }}" if pairs else "{}"


HEADERS = Kind(
    'a table of texts, like { "X-Scope-OrgID" = "team-a" } (environment: JSON, or name=value,name=value)',
    _read_headers,
    _read_headers_text,
    _write_headers,
    private=True,
    brief="table of texts; environment: JSON, or name=value,name=value",
)
