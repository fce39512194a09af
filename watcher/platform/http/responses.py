"""From bytes to a response: in which coding, under which ETag, with which headers, and in how many pieces.

aiohttp would compress each response anew, knows no zstd, sets no Vary, and hands a body of megabytes to the socket at
once. Our bodies are there already, in every coding; what is left is to choose, and to send.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NoReturn

import msgspec
from aiohttp import hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from multidict import CIMultiDict, istr

from watcher.core.publishing.compression import Encoding
from watcher.core.publishing.documents import Published
from watcher.core.publishing.selection import Selection
from watcher.platform.http.negotiation import choose, choose_plain, has_already
from watcher.platform.http.parameters import SHOWN_CHARACTERS
from watcher.platform.http.routing import JSON, ApiError

PIECE_BYTES = 1 << 18  # of a large body, sent at once
SMALL_BODY = 1400  # bytes: fits into one packet, so compressing it gains nothing
_ENCODINGS = tuple(Encoding)


def accepted(request: web.Request) -> str | None:
    """The Accept-Encoding header, all lines of it; None where there is none."""
    headers = request.headers.getall(hdrs.ACCEPT_ENCODING, ())
    return headers[0] if len(headers) == 1 else ",".join(headers) if headers else None


def encoding_for(request: web.Request) -> Encoding:
    """The coding of a long body for this client; raises ApiError (406) if there is none."""
    return choose(accepted(request), _ENCODINGS) or refuse_encodings()


def plain_encoding_for(request: web.Request) -> Encoding:
    """The same for a body that is not worth compressing."""
    return choose_plain(accepted(request)) or refuse_encodings()


def etag_of(
    published: Published, selection: Selection, shape: str, encoding: Encoding, *, rows: Collection[int] = ()
) -> str:
    """Unlike for whatever differs in a single byte, and the same again while the snapshot stays."""
    types = "".join(f"{kind}." for kind in selection.types or ())
    operators = "".join(f"{operator}." for operator in selection.operators or ())
    which = ",".join(map(str, sorted(set(rows))))
    if len(which) > SHOWN_CHARACTERS:
        which = hashlib.blake2s(which.encode(), digest_size=8).hexdigest()
    return f'"{published.tag}-{selection.window.label}-{types}-{operators}-{which}-{shape}-{encoding}"'


def has_it(request: web.Request, etag: str) -> bool:
    """Whether the client says that it has this document already."""
    wanted = request.headers.get(hdrs.IF_NONE_MATCH)
    return wanted is not None and has_already(wanted, etag)


def not_modified(headers: CIMultiDict[str]) -> web.Response:
    """304 carries what a 200 would say about the document, but for what describes its bytes."""
    kept = CIMultiDict(headers)
    kept.pop(hdrs.CONTENT_TYPE, None)
    kept.pop(hdrs.CONTENT_ENCODING, None)
    return web.Response(status=304, headers=kept)


class Pieces(Payload):
    """A body of megabytes, sent piece by piece as the client takes it. Written at once, asyncio (before Python 3.12)
    copies all that the socket does not take, and moves the rest to the front of its buffer after each send: 5.4 ms of
    CPU for 8 MB instead of 1.9, in which nobody else is answered, and a copy in memory for every slow client."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._size = len(body)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return bytes(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        body = memoryview(self._value)
        for start in range(0, len(body), PIECE_BYTES):
            await writer.write(body[start : start + PIECE_BYTES])


def sent(body: bytes, headers: CIMultiDict[str]) -> web.Response:
    """The response with a body."""
    return web.Response(body=body if len(body) <= PIECE_BYTES else Pieces(body), headers=headers)


def coded(headers: Mapping[istr, str] | CIMultiDict[str], encoding: Encoding) -> CIMultiDict[str]:
    """The headers with the coding among them."""
    all_headers = CIMultiDict(headers)
    if encoding is not Encoding.IDENTITY:
        all_headers[hdrs.CONTENT_ENCODING] = encoding.value
    return all_headers


def json_response(body: msgspec.Struct) -> web.Response:
    """A small body that is true at this moment only."""
    headers = {hdrs.CONTENT_TYPE: JSON, hdrs.CACHE_CONTROL: "no-store"}
    return web.Response(body=msgspec.json.encode(body), headers=headers)


# --- bodies that are kept ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Constant:
    """A body that does not change while the process runs."""

    body: bytes
    etag: str
    headers: Mapping[str, str]

    @classmethod
    def of(cls, body: bytes, content_type: str, headers: Mapping[str, str] | None = None) -> Constant:
        etag = f'"{hashlib.blake2s(body, digest_size=8).hexdigest()}"'
        return cls(body, etag, {hdrs.CONTENT_TYPE: content_type, **(headers or {})})


def constant(request: web.Request, body: Constant) -> web.Response:
    """A body that does not change; who has it already is told so."""
    headers = CIMultiDict({**body.headers, hdrs.ETAG: body.etag, hdrs.CACHE_CONTROL: "no-cache"})
    if has_it(request, body.etag):
        return not_modified(headers)
    return web.Response(body=body.body, headers=headers)


class Kept:
    """Encoded bodies of one snapshot, up to so many bytes; those that were not asked for longest go first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._bodies: OrderedDict[object, bytes] = OrderedDict()

    def get(self, key: object) -> bytes | None:
        body = self._bodies.get(key)
        if body is not None:
            self._bodies.move_to_end(key)
        return body

    def put(self, key: object, body: bytes) -> None:
        self._size += len(body) - len(self._bodies.pop(key, b""))
        self._bodies[key] = body
        while self._size > self._limit and len(self._bodies) > 1:
            self._size -= len(self._bodies.popitem(last=False)[1])


def refuse_encodings() -> NoReturn:
    """The client takes none of the codings that we have."""
    raise ApiError(
        406, "not_acceptable", "none of the content codings we have is acceptable", "accept identity, gzip or zstd"
    )
