"""The connection to a cloud monitoring service: requests with credentials, retries, pauses and errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import aiohttp
import msgspec

from load_watcher_cloud.config import CloudConfig
from watcher import __version__
from watcher.core.messages import printable
from watcher.platform.net.redaction import without_credentials
from watcher.providers.base import ProviderError, ProviderRefused, ProviderUnreachable
from watcher.providers.fetching import SerialWorker, malformed_response, retry_after, with_address, with_retries
from watcher.providers.http_client import (
    MAX_CONNECTIONS,
    HttpClient,
    HttpResponse,
    provider_error_of,
    read_secret,
    sendable,
    tls_context,
)

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ParsedResponse(Generic[T]):
    """Parsed content of a response, and the remote clock minus the local clock in seconds (None if unknown)."""

    content: T
    clock_offset_s: float | None


class _ErrorBody(msgspec.Struct, frozen=True):
    """Error text of a response: Datadog sends `errors`, SignalFx `message`."""

    errors: list[str] | str | None = None
    message: str = ""
    error: str = ""


_SAID = msgspec.json.Decoder(_ErrorBody)


class CloudConnection:
    """Connection to one service: at most MAX_CONNECTIONS concurrent requests, none during a pause that the service
    requested.

    `credentials` returns the authentication headers and is called for every request; `hint` is the hint for rejected
    credentials; `api` is the display name of the service's API.
    """

    def __init__(
        self, config: CloudConfig, *, credentials: Callable[[], Mapping[str, str]], hint: str, api: str
    ) -> None:
        self.address = config.address.rstrip("/")
        self._config, self._credentials, self._hint, self._api = config, credentials, hint, api
        self._exchange: HttpClient | None = None
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)
        self._aside = SerialWorker()
        self._paused_until = float("-inf")
        self._private: Sequence[str] = ()

    def start(self) -> None:
        """Log if TLS verification is disabled. Sends no request."""
        if self._config.insecure_skip_verify:
            log.warning("the certificate of %s is not verified (provider.insecure_skip_verify)", self.address)

    async def close(self) -> None:
        """Close the connections, if any."""
        if self._exchange is not None:
            await self._exchange.close()
        self._exchange = None

    async def get(
        self, path: str, query: Mapping[str, str], *, read: Callable[[HttpResponse], T], deadline: float
    ) -> ParsedResponse[T]:
        """Send a GET request and parse the response with `read` in a worker thread. `deadline` is in event loop
        time. Raises ProviderError. Cancelling aborts the request."""
        url = self.address + path
        return await self._retried(lambda on, sent: on.get(url, query=query, headers=sent), read, deadline=deadline)

    async def post(
        self, path: str, body: bytes, *, read: Callable[[HttpResponse], T], deadline: float
    ) -> ParsedResponse[T]:
        """Send a POST request with a JSON body; otherwise like `get`."""
        url = self.address + path
        return await self._retried(lambda on, sent: on.post(url, body=body, headers=sent), read, deadline=deadline)

    async def _retried(
        self,
        send: Callable[[HttpClient, Mapping[str, str]], Awaitable[HttpResponse]],
        read: Callable[[HttpResponse], T],
        *,
        deadline: float,
    ) -> ParsedResponse[T]:
        async def attempt() -> ParsedResponse[T]:
            with self._placed():
                async with asyncio.timeout_at(deadline), self._free:
                    self._heed_pause()
                    answer = await send(self._connected(), self._headers())
                    if answer.status != 200:
                        raise self._refusal(answer)
                    return ParsedResponse(await self._aside.run(read, answer), answer.clock_offset_s)

        return await with_retries(attempt, pauses=self._config.backoff, deadline=deadline)

    @contextlib.contextmanager
    def _placed(self) -> Iterator[None]:
        """Convert any failure to a ProviderError with the address."""
        try:
            yield
        except (ProviderError, TimeoutError, OSError, aiohttp.ClientError) as error:
            message = provider_error_of(error, tls=self.address.startswith("https:"))
            raise with_address(message, self.address, scrub=self.scrub) from error

    def _connected(self) -> HttpClient:
        if self._exchange is None:
            config = self._config
            self._exchange = HttpClient(
                tls=tls_context(config), timeout=config.timeout, max_body_bytes=config.max_body_bytes
            )
        return self._exchange

    def _headers(self) -> dict[str, str]:
        credentials = self._credentials()
        self._private = [*credentials.values(), *(each for each in self._config.headers.values() if len(each) >= 8)]
        own = {"User-Agent": f"load-watcher/{__version__}", "Accept": "application/json"}
        return sendable({**own, **self._config.headers, **credentials})

    def scrub(self, text: str) -> str:
        """Remove the last sent credentials and header values from a remote text."""
        for secret in self._private:
            text = text.replace(secret, "***")
        return text

    def _heed_pause(self) -> None:
        left = self._paused_until - asyncio.get_running_loop().time()
        if left > 0:
            raise _too_many(f"requests are paused for another {left:.0f} s", left)

    # --- refusals ----------------------------------------------------------------------------------------------------

    def _refusal(self, answer: HttpResponse) -> ProviderError:
        """Convert a response with a status other than 200 to an error."""
        status, said = answer.status, self._said(answer)
        if status in (401, 403):
            words = "credentials are required" if status == 401 else "the query is forbidden"
            return ProviderRefused(f"{words} ({status}): {said}", hint=self._hint)
        if 300 <= status < 400:
            location = printable(without_credentials(answer.headers.get("Location", "")))
            return ProviderRefused(
                f"redirect ({status}) to {location or 'no location'} was not followed",
                hint=f"Set provider.address to the address of {self._api}.",
            )
        if status == 404:
            return ProviderRefused(
                f"path not found (404): {said}", hint=f"Check that provider.address points to {self._api}."
            )
        if status == 429:
            return self._pause(answer, said)
        if status == 408 or status >= 500:
            return ProviderUnreachable(
                f"the service is unavailable ({status}): {said}", hint="The service, or a proxy in front of it, failed."
            )
        if answer.body.lstrip()[:1] == b"<":
            return malformed_response(
                answer.body, expected="JSON", api=self._api, content_type=answer.content_type, problem=str(status)
            )
        return ProviderRefused(
            f"the query was rejected ({status}): {said}",
            hint="Check provider.queries, provider.cluster_name and provider.host_name_suffix.",
        )

    def _said(self, answer: HttpResponse) -> str:
        """Error text of a response, without secrets and truncated."""
        try:
            said = _SAID.decode(answer.body)
            words = "; ".join(said.errors) if isinstance(said.errors, list) else said.errors
            text = words or said.message or said.error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            text = ""
        # scrub before truncating: a truncated secret would not be found
        return printable(self.scrub(text or answer.body[:4096].decode(errors="replace")))

    def _pause(self, answer: HttpResponse, said: str) -> ProviderUnreachable:
        """Rate limit exceeded (429): pause all requests for the requested time."""
        seconds = retry_after(answer.headers)
        if seconds is not None:
            until = asyncio.get_running_loop().time() + seconds
            self._paused_until = max(self._paused_until, until)
        return _too_many(f"rate limit exceeded (429): {said}", seconds)


def _too_many(message: str, seconds: float | None) -> ProviderUnreachable:
    hint = "Increase refresh.interval, request fewer metrics (provider.metrics), or raise the service's rate limit."
    return ProviderUnreachable(message, hint=hint, retry_after_s=seconds)


def token_of(config: CloudConfig) -> str:
    """Current API token. Raises ProviderRefused if none is set."""
    token = config.token or read_secret("provider.token_file", config.token_file)
    if not token:
        raise ProviderRefused("no API token is set", hint="Set provider.token or provider.token_file.")
    return token
