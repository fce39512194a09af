"""Which variant of a body a client may have, and whether it has it already (RFC 9110, sections 12.5.3 and 13.1.2).

aiohttp compresses a response when asked to, each time anew. Our bodies are compressed once per refresh, so what is
left to do per request is to choose among them, and to compare the ETag of the chosen one.

Pure: strings in, a choice out.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from watcher.core.publishing.compression import Encoding

LONGEST_REMEMBERED = 256  # characters of a header that may fill the cache; browsers and schedulers send some twenty
_PREFERENCE = (Encoding.ZSTD, Encoding.GZIP, Encoding.IDENTITY)  # at equal q: the cheapest to decode and smallest first
_PLAIN_FIRST = (Encoding.IDENTITY, Encoding.GZIP, Encoding.ZSTD)
_ALIASES = {"x-gzip": "gzip"}  # RFC 9110, section 8.4.1.3
_ENTITY_TAG = re.compile(r'(?:W/)?"([^"]*)"')
_WEIGHT = re.compile(r"(?:0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\Z")


def choose(accept: str | None, available: Collection[Encoding]) -> Encoding | None:
    """The coding to answer with, of those available; None if the client refuses them all.

    `accept` is the Accept-Encoding header, None where there is none: then the body goes out as it is. A coding that is
    not listed is not used, but for identity, which stands at the end of the line unless it is refused.
    """
    if accept is None:
        return Encoding.IDENTITY
    ranking = _ranking(accept) if len(accept) <= LONGEST_REMEMBERED else _rank(accept)
    return next((encoding for encoding in ranking if encoding in available), None)


def choose_plain(accept: str | None) -> Encoding | None:
    """The same for a body so small that compressing it gains nothing: identity unless the client refuses it."""
    if accept is None:
        return Encoding.IDENTITY
    acceptable = _ranking(accept) if len(accept) <= LONGEST_REMEMBERED else _rank(accept)
    return next((encoding for encoding in _PLAIN_FIRST if encoding in acceptable), None)


def _rank(accept: str) -> tuple[Encoding, ...]:
    """The acceptable codings, best first. A weight that is no number counts as 0: the element is not understood."""
    weights: dict[str, float] = {}
    for element in accept.split(","):
        coding, *parameters = (part.strip().lower() for part in element.split(";"))
        if coding:
            weights[_ALIASES.get(coding, coding)] = _weight(parameters)
    anything = weights.get("*")

    def weight(encoding: Encoding) -> float:
        if encoding in weights:
            return weights[encoding]
        if anything is not None:
            return anything
        return 1e-4 if encoding is Encoding.IDENTITY else 0.0  # below the smallest weight that can be written

    acceptable = [encoding for encoding in _PREFERENCE if weight(encoding) > 0]
    return tuple(sorted(acceptable, key=weight, reverse=True))  # stable: the order of preference within a weight


_ranking = lru_cache(maxsize=256)(_rank)


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            return float(value) if _WEIGHT.match(value := value.strip()) else 0.0
    return 1.0


def has_already(if_none_match: str, etag: str) -> bool:
    """Whether an If-None-Match header names `etag` (with its quotes). The comparison is the weak one, because proxies
    that recompress weaken our tags; `*` matches whatever there is."""
    header = if_none_match.strip()
    if header == etag or header == "*":
        return True
    opaque = etag[1:-1]
    return any(found == opaque for found in _ENTITY_TAG.findall(header))
