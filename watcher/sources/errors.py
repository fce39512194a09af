"""Errors of a source of load, for a status of HTTP or a failed connection."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp

from watcher.core.messages import printable
from watcher.platform.net.failures import name_problem, system_reason
from watcher.platform.net.http_body import TOO_LARGE_HINT, AnswerTooLarge
from watcher.platform.net.resolver import HINT as NAMES_HINT
from watcher.platform.net.resolver import NameServerSilent, unanswered
from watcher.platform.net.tls import tls_cure, tls_error, tls_reason

ErrorT = TypeVar("ErrorT", bound="ProviderError")


class ProviderError(Exception):
    """The source returned no data. `hint` states what the operator can do (default: `usual_hint` of the class); the
    cause is chained. Must not contain secrets."""

    kind = "provider"
    usual_hint = "Check the log of the source."

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint or self.usual_hint


class ProviderUnreachable(ProviderError):
    """Connection failure, timeout or transient status (429, 502, 503, 504). A retry can help, after `retry_after_s`
    seconds if the source requests a delay."""

    kind = "unreachable"
    usual_hint = "Check that the source is running, provider.address is correct and no NetworkPolicy blocks access."

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class ProviderTimeout(ProviderUnreachable):
    """The source did not answer in time, or aborted the query after its own limit. A smaller query can help."""


class ProviderRefused(ProviderError):
    """The source rejected the request: credentials, TLS, permission or an invalid query. A retry does not help."""

    kind = "refused"
    usual_hint = "Check the settings of the source: provider.address, its credentials and its queries."


class ProviderMalformed(ProviderError):
    """The response does not conform to the source's protocol."""

    kind = "malformed"
    usual_hint = "Check that provider.address points to the source itself, not to a proxy or a login page."


class ProviderPartial(ProviderError):
    """The response is marked as incomplete, and a value computed from it would be wrong."""

    kind = "partial"
    usual_hint = "Check that all stores behind the source are running."


def with_address(error: ErrorT, address: str, *, scrub: Callable[[str], str]) -> ErrorT:
    """Copy of the error with the address before its message. `scrub` removes secrets, because a proxy may echo the
    request."""
    message = copy.copy(error)
    message.args = (f"{address}: {scrub(str(error))}",)
    return message


def malformed_response(body: bytes, *, expected: str, api: str, content_type: str, problem: str) -> ProviderMalformed:
    """Error for a response that is not `expected` (for example "JSON") of `api` (for example "the InfluxDB API")."""
    start = printable(body[:1024].decode(errors="replace"))
    if body.lstrip()[:1] == b"<":
        return ProviderMalformed(
            f"the response is a web page, not {expected}: {start}",
            hint=f"provider.address may point to a login page or a web UI instead of {api}.",
        )
    kind = f" ({printable(content_type)})" if content_type else ""
    return ProviderMalformed(
        f"the response{kind} is not {expected}: {printable(problem)}; it starts with {start}",
        hint=f"Check that provider.address points to {api}, not to a proxy.",
    )


# --- errors by status ------------------------------------------------------------------------------------------------

TRANSIENT_STATUSES = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class StatusHints:
    """Hints for the statuses of one kind of server. `api` is its display name, such as "the InfluxDB API"."""

    api: str
    no_credentials: str
    forbidden: str
    forbidden_without_credentials: str
    not_found: str


def status_error(
    status: int, text: str, hints: StatusHints, *, location: str, authorised: bool
) -> ProviderError | None:
    """Error for a status that means the same in all HTTP APIs, without the address; None for other statuses. `text` is
    the server's message, `location` the redirect target without credentials, `authorised` states whether credentials
    were sent."""
    if status == 401:
        rejected = "The server rejected provider.token, or provider.username and the password."
        return ProviderRefused(
            f"credentials {'were refused' if authorised else 'are required'} (401): {text}",
            hint=rejected if authorised else hints.no_credentials,
        )
    if status == 403:
        return ProviderRefused(
            f"the query is forbidden (403): {text}",
            hint=hints.forbidden if authorised else hints.forbidden_without_credentials,
        )
    if 300 <= status < 400:
        return ProviderRefused(
            f"redirect ({status}) to {printable(location) or 'no location'} was not followed",
            hint=f"Set provider.address to the address of {hints.api}; if this is a login page, set a token.",
        )
    if status in TRANSIENT_STATUSES:
        return ProviderUnreachable(f"the server is unavailable ({status}): {text}")
    if status == 404:
        return ProviderRefused(f"the path of the query API was not found (404): {text}", hint=hints.not_found)
    return None


# --- errors below HTTP -----------------------------------------------------------------------------------------------


def provider_error_of(error: BaseException, *, url: str) -> ProviderError:
    """Convert a failure below HTTP of a request to this URL to a ProviderError. The message does not contain the
    address."""
    tls = url.startswith("https:")
    if isinstance(error, ProviderError):
        return error
    if isinstance(error, AnswerTooLarge):
        return ProviderMalformed(str(error), hint=TOO_LARGE_HINT)
    if isinstance(error, TimeoutError):
        if silent := unanswered([urlsplit(url).hostname or ""]):
            return ProviderTimeout(silent, hint=NAMES_HINT)
        return ProviderTimeout(
            "no response in time", hint="Check whether the server is overloaded, or increase provider.timeout."
        )
    if refused := tls_error(error):  # a retry fails in the same way
        names = {
            "authority": "provider.ca_file",
            "client": "provider.client_cert and provider.client_key",
            "address": "provider.address",
        }
        return ProviderRefused(tls_reason(refused), hint=tls_cure(refused, **names))
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        silent_lookup = isinstance(error.os_error, NameServerSilent)
        return ProviderUnreachable(
            name_problem(error), hint=NAMES_HINT if silent_lookup else "Check the host in provider.address."
        )
    if isinstance(error, aiohttp.ClientPayloadError) and "content-encoding" in str(error):
        return ProviderMalformed(
            "the response does not match its content encoding", hint="Check for a proxy in front of the server."
        )
    if isinstance(error, aiohttp.ClientResponseError):
        return ProviderMalformed(
            f"the response is not valid HTTP: {printable(error.message)}",
            hint="Check the port in provider.address, and whether the server requires https.",
        )
    return _of_connection(error, tls=tls)


def _of_connection(error: BaseException, *, tls: bool) -> ProviderUnreachable:
    hint = "Check that the server is running and that host and port of provider.address are correct."
    if not isinstance(error, aiohttp.ClientConnectorError):
        hint = "The connection was closed: check for a proxy in front of the server, or a restart."
        if tls:
            hint = "The server may require a client certificate: provider.client_cert."
    return ProviderUnreachable(f"the connection failed: {printable(_words(error))}", hint=hint)


def _words(error: BaseException) -> str:
    return system_reason(error) if isinstance(error, OSError) else type(error).__name__
