"""Errors of a source of load."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

from watcher.core.messages import printable

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
