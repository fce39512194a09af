"""Queries to the HTTP API of Prometheus, or of a server in front of it: Thanos, Mimir or VictoriaMetrics.

The response may come from a proxy, a login page or another implementation, or be truncated, so everything is validated.
A response for thousands of nodes has megabytes: decoding it in one call would hold Python's global lock and block the
event loop. Therefore the envelope is decoded first, with each series as raw bytes, and then one series at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from watcher.core.messages import printable
from watcher.decoding.json_text import JsonDecoder
from watcher.sources.config import ConnectionSettings, InstantQuery, RangeQuery
from watcher.sources.errors import (
    TRANSIENT_STATUSES,
    ProviderError,
    ProviderMalformed,
    ProviderRefused,
    ProviderTimeout,
    StatusHints,
    malformed_response,
    status_error,
)
from watcher.sources.http import Credentials, HttpResponse, SourceConnection

T = TypeVar("T")

API = "the Prometheus API"
SERIES_PER_PAUSE = 64
PAUSE_S = 50e-6
"""Decoding sleeps PAUSE_S seconds after every SERIES_PER_PAUSE series to release Python's global lock. Measured with
5,000 nodes: the event loop's longest delay during a fetch decreases from 22 ms to 8 ms (medians), and a fetch takes
90 ms longer."""
TOO_MANY_SAMPLES = (
    "too many samples",  # Prometheus and Thanos
    "max number of samples",  # Mimir and Cortex
    "maxSamplesPer",
    "maxMemoryPerQuery",
)
"""Parts of the messages of servers that refuse a query for the number of samples that it reads."""
VICTORIA_METRICS_HEADER = "X-Server-Hostname"
"""Response header of all VictoriaMetrics servers; Prometheus, Thanos and Mimir do not send it."""


@dataclass(frozen=True, slots=True)
class PrometheusResponse(Generic[T]):
    """Parsed response: `missing` is the server's message about an incomplete response, "" if complete; `remarks` are
    its warnings about the query. `clock_offset_s` is the server's clock minus the local clock in seconds,
    `round_trip_s` the duration in seconds."""

    content: T
    missing: str
    remarks: tuple[str, ...]
    clock_offset_s: float | None
    round_trip_s: float


# --- client ----------------------------------------------------------------------------------------------------------


class PrometheusClient(SourceConnection):
    """Sends queries and returns parsed responses."""

    def __init__(self, settings: ConnectionSettings) -> None:
        super().__init__(settings, credentials=Credentials(settings).headers, refusal=error_of)
        self.victoria_metrics = False
        """Whether the last response came from VictoriaMetrics; set before `read` is called with that response."""

    async def ask(
        self,
        question: InstantQuery | RangeQuery,
        *,
        expects: str,
        read: Callable[[Iterable[msgspec.Raw]], T],
        deadline: float,
    ) -> PrometheusResponse[T]:
        """Send a query and parse the series of the response with `read`, in a thread.

        `expects` is the result type, "matrix" or "vector". `deadline` is in event loop time and limits the retries of
        transient failures. Raises ProviderError; cancelling aborts the query.
        """

        async def attempt() -> PrometheusResponse[T]:
            began = time.monotonic()
            answer = await self.get(question.path, question.parameters())
            took = time.monotonic() - began
            self.victoria_metrics = VICTORIA_METRICS_HEADER in answer.headers
            envelope, content = await self.worker.run(_parse, answer, expects=expects, read=read)
            missing, remarked = self.scrub(missing_part(envelope)), tuple(map(self.scrub, remarks(envelope)))
            return PrometheusResponse(content, missing, remarked, answer.clock_offset_s, took)

        return await self.retried(attempt, deadline=deadline)


def _parse(answer: HttpResponse, *, expects: str, read: Callable[[Iterable[msgspec.Raw]], T]) -> tuple[Envelope, T]:
    time.sleep(PAUSE_S)  # release the lock between two envelopes: decoding one is a single long call
    envelope = read_envelope(answer.body, content_type=answer.content_type)
    return envelope, read(with_pauses(series_of(envelope, expects=expects)))


def with_pauses(series: Iterable[msgspec.Raw]) -> Iterator[msgspec.Raw]:
    """The series, with short pauses that release Python's global lock. Without them the event loop, which needs the
    lock about a thousand times per second, waits 5 ms for it each time."""
    for number, raw in enumerate(series, start=1):
        if number % SERIES_PER_PAUSE == 0:
            time.sleep(PAUSE_S)
        yield raw


# --- envelope --------------------------------------------------------------------------------------------------------


class Data(msgspec.Struct, frozen=True):
    """Field `data` of a response. The result of a scalar or string is also an array; it is rejected by its type."""

    resultType: str = ""  # noqa: N815  (wire name)
    result: list[msgspec.Raw] | None = None


class Envelope(msgspec.Struct, frozen=True):
    """Top-level object of a response, with undecoded series."""

    status: str = ""
    data: Data | None = None
    errorType: str = ""  # noqa: N815  (wire name)
    error: str = ""
    warnings: list[str] | None = None
    isPartial: bool = False  # noqa: N815  (wire name, of VictoriaMetrics)


_ENVELOPE = JsonDecoder(Envelope)


def read_envelope(body: bytes, *, content_type: str) -> Envelope:
    """Parse the envelope of a response with status 200. Raises ProviderMalformed, ProviderRefused."""
    try:
        envelope = _ENVELOPE.decode(body)
    except msgspec.DecodeError as error:
        raise malformed_response(
            body, expected=f"the JSON of {API}", api=API, content_type=content_type, problem=str(error)
        ) from error
    if envelope.status == "error":
        raise refused_query(200, envelope)
    if envelope.status != "success" or envelope.data is None or envelope.data.result is None:
        raise ProviderMalformed(
            f"the JSON is not a response of the Prometheus API: {printable(body[:1024].decode(errors='replace'))}",
            hint="Check that provider.address is the address of a Prometheus.",
        )
    return envelope


def series_of(envelope: Envelope, *, expects: str) -> Sequence[msgspec.Raw]:
    """Series of a response with the expected type, "matrix" or "vector". Raises ProviderMalformed."""
    if envelope.data is None or envelope.data.result is None:
        raise ProviderMalformed("the response has no result")
    found = envelope.data.resultType
    if found != expects:
        # An expression such as `1 - 0.5` returns a scalar: the expression is wrong.
        hint = "The expression must give one value for each node." if found in ("scalar", "string") else ""
        raise ProviderMalformed(
            f"the response is a {printable(found) or 'result without a type'}, not a {expects}", hint=hint
        )
    return envelope.data.result


def missing_part(envelope: Envelope) -> str:
    """The source's message about an incomplete response, "" if it is complete.

    VictoriaMetrics has a field for it. Thanos, Mimir, and Prometheus with remote storage send a warning. Prometheus
    also sends warnings about questionable queries, which start with "PromQL".
    """
    message = [printable(warning) for warning in envelope.warnings or () if not _is_remark(warning)]
    if message:
        return message[0] + (f" (and {len(message) - 1} more)" if len(message) > 1 else "")
    return "the response is marked as partial (isPartial)" if envelope.isPartial else ""


def remarks(envelope: Envelope) -> tuple[str, ...]:
    """Warnings about the query itself."""
    return tuple(printable(warning) for warning in envelope.warnings or () if _is_remark(warning))


def _is_remark(warning: str) -> bool:
    return warning.startswith("PromQL ")


# --- errors by status ------------------------------------------------------------------------------------------------

_GRANT = "Grant the account of provider.token or provider.username permission to query"
_HINTS = StatusHints(
    API,
    "Set provider.token or provider.token_file, or provider.username and provider.password_file.",
    f"{_GRANT} (on OpenShift: cluster-monitoring-view).",
    f"{_GRANT}, or set one: no credentials were sent.",
    "Check that provider.address is a Prometheus, with the path before /api/v1, if there is one, such as /prometheus "
    "or /select/0/prometheus.",
)


def error_of(answer: HttpResponse, location: str, authorised: bool) -> ProviderError:
    """Convert a response with a status other than 200 to an error, without the address. `authorised`: whether
    credentials were sent; `location`: the redirect target without credentials."""
    status, body = answer.status, answer.body
    if b"HTTP request to an HTTPS server" in body or b"plain HTTP request was sent to HTTPS" in body:
        return ProviderRefused(
            "the server requires TLS, but the request was plain HTTP", hint="Use https:// in provider.address."
        )
    text = printable(body.decode(errors="replace"))
    try:
        envelope = _ENVELOPE.decode(body)
    except msgspec.DecodeError:
        envelope = Envelope(error=text)
    if status in TRANSIENT_STATUSES:
        text = printable(envelope.error)
    error = status_error(status, text, _HINTS, location=location, authorised=authorised)
    return error or refused_query(status, envelope)


def refused_query(status: int, envelope: Envelope) -> ProviderError:
    """Prometheus rejected a query or aborted it. A timeout has status 422 in Prometheus 2.42 and 503 in 3.5."""
    reason = (
        f"{printable(envelope.errorType)}: {printable(envelope.error)}"
        if envelope.errorType
        else printable(envelope.error)
    )
    if "deadline exceeded" in envelope.error or envelope.errorType == "timeout":
        return ProviderTimeout(
            f"the query timed out on the server ({status} {reason})",
            hint="Recording rules make the queries cheaper. The server's limit is --query.timeout.",
        )
    if any(words in envelope.error for words in TOO_MANY_SAMPLES):
        return ProviderRefused(
            f"the query reads more samples than the server allows ({status} {reason})",
            hint="Raise the limit of the server (Prometheus: --query.max-samples; VictoriaMetrics: "
            "-search.maxSamplesPerQuery or -search.maxMemoryPerQuery), or let a query read less: recording rules "
            "instead of raw series, matchers of one cluster (provider.matchers), or a shorter longest window "
            "(refresh.windows).",
        )
    hint = "Check the expression in provider.queries, and provider.matchers." if status in (400, 422) else ""
    if "parse error" in envelope.error:
        hint += " Label names with other characters than ASCII letters, digits and _ need Prometheus 3."
    return ProviderRefused(f"the query was rejected ({status} {reason})", hint=hint)
