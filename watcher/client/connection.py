"""HTTP requests to the watcher, with retries and conditional requests (ETag)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
import msgspec

from watcher.client.errors import WatcherError
from watcher.core.messages import printable
from watcher.core.publishing.wire import ErrorDocument
from watcher.decoding.json_text import decode_json
from watcher.platform.net.failures import failure_reason
from watcher.platform.net.http_body import TOO_LARGE_HINT, AnswerTooLarge, answer_bound, read_body
from watcher.platform.net.session import client_session

TIMEOUT_S = 10.0
RETRIES = 2
BACKOFF_S = 0.5
_RETRIED_STATUSES = frozenset({408, 429, 500, 502, 504})  # retried; 503 is final (stale, partial outage)


@dataclass(slots=True)
class DocumentRequest:
    """A document that is requested repeatedly: its URL and parameters, and the ETag of the last copy."""

    url: str
    params: Sequence[tuple[str, str]] = ()
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A response with status 200 or 304 (`unchanged`). `requested_at` is the monotonic time of the request in seconds,
    the earliest time at which the response may have been created; `age` is the upper bound of its Age header in
    seconds; `date` is its Date header."""

    unchanged: bool
    body: bytes
    etag: str | None
    requested_at: float
    age: float
    date: str | None = None


class ApiConnection:
    """Sends requests to the watcher: retries transient failures and translates all failures to WatcherError."""

    def __init__(
        self,
        *,
        token: str | None,
        tls: ssl.SSLContext | None,
        timeout: float,
        retries: int,
        backoff: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._headers = {"Accept-Encoding": "gzip"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._tls = tls
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._retries = retries
        self._backoff = backoff
        self._monotonic = monotonic
        self._bound = answer_bound()
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the HTTP session, if it is open."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, document: DocumentRequest, *, known: object) -> Received:
        """Request a document. If `known`, the current copy, is not None, the request is conditional. Raises
        WatcherError."""
        for attempt in range(self._retries + 1):
            try:
                return await self._ask_once(document, known=known)
            except _TransientError as passing:
                if attempt == self._retries:
                    raise passing.error from passing.__cause__
                await asyncio.sleep(self._backoff * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _ask_once(self, document: DocumentRequest, *, known: object) -> Received:
        if self._session is None:
            self._session = client_session(tls=self._tls)
        headers = dict(self._headers)
        if document.etag is not None and known is not None:
            headers["If-None-Match"] = document.etag
        asked = self._monotonic()
        try:
            async with self._session.get(
                document.url,
                params=document.params,
                headers=headers,
                timeout=self._timeout,
                allow_redirects=False,  # a redirect would send the token to another server
            ) as response:
                body = await read_body(response, self._bound)
        except AnswerTooLarge as error:
            raise WatcherError("malformed", f"{document.url}: {error}", hint=TOO_LARGE_HINT) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = failure_reason(error, url=document.url)
            hint = "check the address, and that the watcher is running"
            message = WatcherError("unreachable", f"no response from {document.url}: {reason}", hint=hint)
            raise _TransientError(message) from error
        unchanged = response.status == 304 and known is not None
        if response.status != 200 and not unchanged:
            refused = _error(response.status, body, document.url)
            raise _TransientError(refused) if response.status in _RETRIED_STATUSES else refused
        etag = document.etag if unchanged else response.headers.get("ETag")
        return Received(unchanged, body, etag, asked, _age(response.headers), response.headers.get("Date"))


class _TransientError(Exception):
    """A transient failure that is retried."""

    def __init__(self, error: WatcherError) -> None:
        super().__init__(str(error))
        self.error = error


def _age(headers: Mapping[str, str]) -> float:
    """The maximum age of a response in seconds: the Age header is rounded down, so 1 is added. 0 without the header."""
    text = headers.get("Age", "")
    return float(text) + 1.0 if text.isascii() and text.isdigit() else 0.0


def _error(status: int, body: bytes, url: str) -> WatcherError:
    try:
        detail = decode_json(body, type=ErrorDocument).error
    except msgspec.DecodeError:
        hint = "check that this is the address of a load-watcher"
        return WatcherError("malformed", f"status {status} from {url} without an error document", hint=hint)
    return WatcherError(printable(detail.code), printable(detail.message), hint=printable(detail.hint))


def malformed(what: str, document: DocumentRequest, error: msgspec.DecodeError) -> WatcherError:
    return WatcherError("malformed", f"invalid {what} document from {document.url}: {error}")
