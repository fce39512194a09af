"""Content-coding negotiation and If-None-Match (RFC 9110, sections 12.5.3 and 13.1.2).

aiohttp compresses each response separately. The watcher compresses each body once per refresh, so a request only
selects one of the compressed bodies and compares its ETag.

Pure: no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from watcher.core.publishing.compression import Encoding

LONGEST_REMEMBERED = 256  # longest header (characters) to cache; browsers and schedulers send about 20 characters
_PREFERENCE = (Encoding.ZSTD, Encoding.GZIP, Encoding.IDENTITY)  # at equal q: smallest and cheapest to decode first
_PLAIN_FIRST = (Encoding.IDENTITY, Encoding.GZIP, Encoding.ZSTD)
_ALIASES = {"x-gzip": "gzip"}  # RFC 9110, section 8.4.1.3
_ENTITY_TAG = re.compile(r'(?:W/)?"([^"]*)"')
_WEIGHT = re.compile(r"(?:0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\Z")


def choose(accept: str | None, available: Collection[Encoding]) -> Encoding | None:
    """The coding for the response, one of `available`; None if the client refuses all of them.

    `accept` is the Accept-Encoding header; without one (None) the body is sent uncompressed. A coding that the header
    does not list is not used, except identity, which ranks last unless the client refuses it.
    """
    if accept is None:
        return Encoding.IDENTITY
    ranking = _ranking(accept) if len(accept) <= LONGEST_REMEMBERED else _rank(accept)
    return next((encoding for encoding in ranking if encoding in available), None)


def choose_plain(accept: str | None) -> Encoding | None:
    """Like `choose`, for a body that is too small to compress: identity unless the client refuses it."""
    if accept is None:
        return Encoding.IDENTITY
    acceptable = _ranking(accept) if len(accept) <= LONGEST_REMEMBERED else _rank(accept)
    return next((encoding for encoding in _PLAIN_FIRST if encoding in acceptable), None)


def _rank(accept: str) -> tuple[Encoding, ...]:
    """The acceptable codings, best first. An invalid weight counts as 0."""
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


def if_none_match_matches(if_none_match: str, etag: str) -> bool:
    """Whether an If-None-Match header contains `etag` (given with its quotes). Uses the weak comparison, because
    proxies that recompress a body turn its ETag into a weak one; `*` matches every ETag."""
    header = if_none_match.strip()
    if header == etag or header == "*":
        return True
    opaque = etag[1:-1]
    return any(found == opaque for found in _ENTITY_TAG.findall(header))
