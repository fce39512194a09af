"""The connection to a cloud monitoring service: requests with credentials, retries, pauses and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from watcher.core.messages import printable
from watcher.decoding.json_text import JsonDecoder
from watcher.sources.errors import ProviderError, ProviderRefused, ProviderUnreachable, malformed_response
from watcher.sources.http import HttpResponse, SourceConnection, read_secret, retry_after
from watcher.sources.settings import ProviderSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ParsedResponse(Generic[T]):
    """Parsed content of a response, and the remote clock minus the local clock in seconds (None if unknown)."""

    content: T
    clock_offset_s: float | None


class _ErrorBody(msgspec.Struct, frozen=True):
    """Error text of a response: Datadog sends `errors`, proxies send `message` or `error`."""

    errors: list[str] | str | None = None
    message: str = ""
    error: str = ""


_SAID = JsonDecoder(_ErrorBody)


class CloudConnection:
    """Connection to one service: no requests during a pause that the service requested.

    `credentials` returns the authentication headers and is called for every request; `hint` is the hint for rejected
    credentials; `api` is the display name of the service's API.
    """

    def __init__(
        self, settings: ProviderSettings, *, credentials: Callable[[], Mapping[str, str]], hint: str, api: str
    ) -> None:
        self._connection = SourceConnection(settings, credentials=credentials, refusal=self._refusal)
        self._hint, self._api = hint, api
        self._paused_until = float("-inf")

    @property
    def address(self) -> str:
        """Address of the service; it contains no credentials."""
        return self._connection.address

    def start(self) -> None:
        """Log if TLS verification is disabled. Sends no request."""
        self._connection.start()

    async def close(self) -> None:
        """Close the connections, if any."""
        await self._connection.close()

    async def post(
        self, path: str, body: bytes, *, read: Callable[[HttpResponse], T], deadline: float
    ) -> ParsedResponse[T]:
        """Send a POST request with a JSON body, and parse the response with `read` in a worker thread. `deadline` is in
        event loop time. Raises ProviderError. Cancelling aborts the request."""

        async def attempt() -> ParsedResponse[T]:
            self._heed_pause()
            answer = await self._connection.post(path, body)
            return ParsedResponse(await self._connection.worker.run(read, answer), answer.clock_offset_s)

        return await self._connection.retried(attempt, deadline=deadline)

    def scrub(self, text: str) -> str:
        """Remove the last sent credentials and header values from a remote text."""
        return self._connection.scrub(text)

    def _heed_pause(self) -> None:
        left = self._paused_until - asyncio.get_running_loop().time()
        if left > 0:
            raise _too_many(f"requests are paused for another {left:.0f} s", left)

    # --- refusals ----------------------------------------------------------------------------------------------------

    def _refusal(self, answer: HttpResponse, location: str, _: bool) -> ProviderError:
        """Convert a response with a status other than 200 to an error."""
        status, said = answer.status, _text_of(answer)
        if status in (401, 403):
            words = "credentials are required" if status == 401 else "the query is forbidden"
            return ProviderRefused(f"{words} ({status}): {said}", hint=self._hint)
        if 300 <= status < 400:
            return ProviderRefused(
                f"redirect ({status}) to {printable(location) or 'no location'} was not followed",
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


def _text_of(answer: HttpResponse) -> str:
    """Error text of a response, truncated."""
    try:
        said = _SAID.decode(answer.body)
        words = "; ".join(said.errors) if isinstance(said.errors, list) else said.errors
        text = words or said.message or said.error
    except msgspec.DecodeError:
        text = ""
    return printable(text or answer.body[:4096].decode(errors="replace"))


def token_of(settings: ProviderSettings) -> str:
    """Current API token. Raises ProviderRefused if none is set."""
    token = read_secret("provider.token_file", settings.token_file, settings.token)
    if not token:
        raise ProviderRefused("no API token is set", hint="Set provider.token or provider.token_file.")
    return token
