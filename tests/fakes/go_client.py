"""A model of the decoder of the Trimaran plug-ins' Go client.

The plug-ins decode with gojay, which differs from other decoders: it takes `null` as a load of zero, reads long numbers
wrongly without an error, and discards a whole response for one invalid token. This model of that decoder for
load-watcher's types was made from its behaviour, and is compared with recorded results of the real one
(tests/vectors/trimaran_wire.json).

The model also accepts the invalid texts that the real decoder was seen to accept and that no encoder writes (a missing
comma, a bare word in a skipped object). Where both may differ, the model refuses more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

SPACE = b" \n\t\r,"  # a comma counts as white space
DIGITS = b"0123456789"
LONGEST_INT = 19  # digits of the largest int64
MOST_EXPONENT = 19
EXACT_DIGITS = 18  # of the fraction that are used


class Rejected(Exception):
    """The client discards the whole response and keeps its last copy."""


@dataclass
class Metric:
    """One number of a node, as the plug-ins see it."""

    name: str = ""
    type: str = ""
    operator: str = ""
    rollup: str = ""
    value: float = 0.0


@dataclass
class WatcherMetrics:
    """The decoded response."""

    timestamp: int = 0
    duration: str = ""
    start: int = 0
    end: int = 0
    source: str = ""
    nodes: dict[str, list[Metric]] = field(default_factory=dict)


def decode(body: bytes) -> WatcherMetrics:
    """The response as the plug-ins see it; raises `Rejected`."""
    return _Decoder(body).document()


def _wrapped(value: int) -> int:
    """An int64 after overflow."""
    return (value + 2**63) % 2**64 - 2**63


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def document(self) -> WatcherMetrics:
        found = WatcherMetrics()
        window = {
            b"duration": lambda: setattr(found, "duration", self.string(found.duration)),
            b"start": lambda: setattr(found, "start", self.integer(found.start)),
            b"end": lambda: setattr(found, "end", self.integer(found.end)),
        }

        def node(name: bytes) -> None:
            metrics: list[Metric] = []
            keys = {
                b"metrics": lambda: self.read_array(lambda: metrics.append(self.metric())),
                b"tags": lambda: self.read_object(lambda key: self.skip()),
                b"metadata": lambda: self.read_object(self.known({b"dataCenter": lambda: self.string("")})),
            }
            self.read_object(self.known(keys))
            found.nodes[name.decode()] = metrics

        data = {b"NodeMetricsMap": lambda: self.read_object(node)}
        root = {
            b"timestamp": lambda: setattr(found, "timestamp", self.integer(found.timestamp)),
            b"window": lambda: self.read_object(self.known(window)),
            b"source": lambda: setattr(found, "source", self.string(found.source)),
            b"data": lambda: self.read_object(self.known(data)),
        }
        self.read_object(self.known(root), stop_after=len(root))
        return found

    def metric(self) -> Metric:
        found = Metric()

        def text(name: str) -> Callable[[], None]:
            return lambda: setattr(found, name, self.string(getattr(found, name)))

        texts = {name.encode(): text(name) for name in ("name", "type", "operator", "rollup")}
        value = {b"value": lambda: setattr(found, "value", self.number(found.value))}
        self.read_object(self.known({**texts, **value}))
        return found

    def known(self, keys: Mapping[bytes, Callable[[], object]]) -> Callable[[bytes], bool]:
        """Decode the value of a known key, skip that of another; whether it was known."""

        def value(key: bytes) -> bool:
            keys.get(key, self.skip)()
            return key in keys

        return value

    # --- tokens ------------------------------------------------------------------------------------------------------

    def peek(self) -> int:
        """The next byte that is not white space."""
        while self.at < len(self.data) and self.data[self.at] in SPACE:
            self.at += 1
        if self.at == len(self.data):
            raise Rejected("the answer ends too early")
        return self.data[self.at]

    def null(self) -> bool:
        if self.peek() != ord("n"):
            return False
        self.word(b"null")
        return True

    def word(self, word: bytes) -> None:
        if self.data[self.at : self.at + len(word)] != word:
            raise Rejected(f"a bare word at {self.at}")
        self.at += len(word)

    def open(self, bracket: bytes) -> None:
        if self.peek() != bracket[0]:
            raise Rejected(f"{chr(self.data[self.at])!r} where {bracket.decode()} was expected, at {self.at}")
        self.at += 1

    def read_object(self, value: Callable[[bytes], object], *, stop_after: int = 0) -> None:
        """An object; after this number of known keys, the rest is skipped."""
        if self.null():
            return
        self.open(b"{")
        done = 0
        while self.peek() != ord("}"):
            key = self.quoted()
            colon = self.data.find(b":", self.at)
            if colon < 0:
                raise Rejected("no colon")
            self.at = colon + 1
            done += value(key) is True
            if stop_after and done == stop_after:
                return
        self.at += 1

    def read_array(self, element: Callable[[], object]) -> None:
        if self.null():
            return
        self.open(b"[")
        while self.peek() != ord("]"):
            element()
        self.at += 1

    def string(self, before: str) -> str:
        return before if self.null() else self.quoted().decode()

    def quoted(self) -> bytes:
        self.open(b'"')
        text = bytearray()
        while self.at < len(self.data):
            byte = self.data[self.at]
            self.at += 1
            if byte == ord('"'):
                return bytes(text)
            text += self.escaped() if byte == ord("\\") else bytes([byte])
        raise Rejected("a string does not end")

    def escaped(self) -> bytes:
        byte = self.data[self.at : self.at + 1]
        self.at += 1
        plain = {b'"': b'"', b"\\": b"\\", b"/": b"/", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
        if byte in plain:
            return plain[byte]
        if byte != b"u":
            raise Rejected("an escape that does not exist")
        digits = self.data[self.at : self.at + 4]
        self.at += 4
        try:
            return chr(int(digits, 16)).encode("utf-8", "surrogatepass")
        except ValueError:
            raise Rejected("an escape without its digits") from None

    def skip(self) -> None:
        """A skipped value."""
        first = self.peek()
        words = {ord("n"): b"null", ord("t"): b"true", ord("f"): b"false"}
        if first in words:
            self.word(words[first])
        elif first == ord('"'):
            self.quoted()
        elif first == ord("{"):
            self.read_object(lambda key: self.skip())
        elif first == ord("["):
            self.read_array(self.skip)
        elif first in DIGITS + b"-":
            self.at += 1
            while self.at < len(self.data) and self.data[self.at] in DIGITS + b".eE+-":
                self.at += 1
        else:
            raise Rejected(f"{chr(first)!r} at {self.at}")

    # --- numbers -----------------------------------------------------------------------------------------------------

    def number(self, before: float) -> float:
        """A float, decoded through integers: the part before the point, and up to 18 digits after it."""
        if self.null():
            return before
        whole, fraction, exponent, sign = self.literal()
        if fraction is None:
            value = float(self.int64(whole))
        else:
            # 19 digits are read completely, and then the part before the point counts a tenth
            used = fraction if len(fraction) == EXACT_DIGITS + 1 else fraction[:EXACT_DIGITS]
            shifted = _wrapped(self.int64(whole) * 10 ** min(len(used), EXACT_DIGITS))
            value = float(_wrapped(shifted + self.int64(used))) / 10.0 ** len(used)
        if exponent is not None:
            if abs(exponent) > MOST_EXPONENT:
                raise Rejected("an exponent beyond 19")
            value = value * (1 / 10.0**-exponent) if exponent < 0 else value * 10.0**exponent
        return sign * value

    def integer(self, before: int) -> int:
        """An integer; a fraction is dropped."""
        if self.null():
            return before
        start = self.at
        whole, _, exponent, sign = self.literal()
        if exponent is None:
            return sign * self.int64(whole)
        self.at = start
        return int(self.number(0.0))

    def literal(self) -> tuple[bytes, bytes | None, int | None, int]:
        sign = 1
        if self.peek() == ord("-"):
            sign = -1
            self.at += 1
        whole = self.digits("a number was expected")
        fraction = exponent = None
        if self.data[self.at : self.at + 1] == b".":
            self.at += 1
            fraction = self.digits("a point without digits after it")
        if self.data[self.at : self.at + 1] in (b"e", b"E"):
            self.at += 1
            negative = self.data[self.at : self.at + 1] == b"-"
            if self.data[self.at : self.at + 1] in (b"+", b"-"):
                self.at += 1
            exponent = int(self.digits("an exponent without digits")) * (-1 if negative else 1)
        if self.at < len(self.data) and self.data[self.at] not in SPACE + b"}]":
            raise Rejected(f"{chr(self.data[self.at])!r} in a number, at {self.at}")
        return whole, fraction, exponent, sign

    def digits(self, wrong: str) -> bytes:
        start = self.at
        while self.at < len(self.data) and self.data[self.at] in DIGITS:
            self.at += 1
        if start == self.at:
            raise Rejected(f"{wrong}, at {start}")
        return self.data[start : self.at]

    def int64(self, digits: bytes) -> int:
        if len(digits) > LONGEST_INT or int(digits) > 2**63 - 1:
            raise Rejected("an integer beyond int64")
        return int(digits)
