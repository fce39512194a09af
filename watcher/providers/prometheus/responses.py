"""Parses the responses of Prometheus, or of a server in front of it.

The response may come from a proxy, a login page or another implementation, or be truncated, so everything is validated.
A response for thousands of nodes has megabytes: decoding it in one call would hold Python's global lock and block the
event loop. Therefore the envelope is decoded first, with each series as raw bytes, and then one series at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np

from watcher.arrays import F64, I64
from watcher.core.messages import printable
from watcher.core.naming.name_resolver import without_port
from watcher.model import SOURCE_UNITS, SeriesBatch
from watcher.providers.base import ProviderError, ProviderMalformed, ProviderRefused, ProviderUnreachable
from watcher.providers.fetching import TRANSIENT_STATUSES, in_unit, malformed_response
from watcher.providers.prometheus.queries import NodeLabel, PrometheusQueryPlan

API = "the Prometheus API"


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


class _LabelsRow(msgspec.Struct, frozen=True):
    metric: dict[str, str] = {}


class _MatrixSeries(msgspec.Struct, frozen=True):
    metric: dict[str, str] = {}
    values: list[tuple[float, float]] = []


class _OddSeries(msgspec.Struct, frozen=True):
    """Series with values that the fast decoder rejects, such as "+Inf"."""

    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []


_ENVELOPE = msgspec.json.Decoder(Envelope)
_ROW = msgspec.json.Decoder(_LabelsRow)
# Not strict: values are numbers in strings, which this decoder then converts at no extra cost.
_SERIES = msgspec.json.Decoder(_MatrixSeries, strict=False)
_ODD_SERIES = msgspec.json.Decoder(_OddSeries)


# --- envelope --------------------------------------------------------------------------------------------------------


def read_envelope(body: bytes, *, content_type: str) -> Envelope:
    """Parse the envelope of a response with status 200. Raises ProviderMalformed, ProviderRefused."""
    try:
        envelope = _ENVELOPE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
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


def error_of(status: int, *, body: bytes, content_type: str, location: str, authorised: bool) -> ProviderError:
    """Convert a response with a status other than 200 to an error, without the address. `authorised`: whether
    credentials were sent; `location`: the redirect target without credentials."""
    text = printable(body.decode(errors="replace"))
    if status == 401:
        return ProviderRefused(f"credentials are required (401): {text}", hint=_credentials_hint(authorised))
    if status == 403:
        return ProviderRefused(
            f"the query is forbidden (403): {text}",
            hint="Grant the account of provider.token or provider.username permission to query"
            + (
                " (on OpenShift: cluster-monitoring-view)." if authorised else ", or set one: no credentials were sent."
            ),
        )
    if 300 <= status < 400:
        return ProviderRefused(
            f"redirect ({status}) to {printable(location) or 'no location'} was not followed",
            hint="Set provider.address to the address of the Prometheus API; if this is a login page, set a token.",
        )
    if b"HTTP request to an HTTPS server" in body or b"plain HTTP request was sent to HTTPS" in body:
        return ProviderRefused(
            "the server requires TLS, but the request was plain HTTP", hint="Use https:// in provider.address."
        )
    if status == 404:
        return ProviderRefused(
            f"the path of the query API was not found (404): {text}",
            hint="Check that provider.address is a Prometheus, with the path before /api/v1, if there is one, such as "
            "/prometheus or /select/0/prometheus.",
        )
    return _error_in_json(status, body=body, text=text)


def _credentials_hint(authorised: bool) -> str:
    if authorised:
        return "The server rejected provider.token, or provider.username and the password."
    return "Set provider.token or provider.token_file, or provider.username and provider.password_file."


def _error_in_json(status: int, *, body: bytes, text: str) -> ProviderError:
    """Convert the statuses under which Prometheus sends an error description."""
    try:
        envelope = _ENVELOPE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        envelope = Envelope(error=text)
    if status in TRANSIENT_STATUSES:
        return ProviderUnreachable(f"the server is unavailable ({status}): {printable(envelope.error)}")
    return refused_query(status, envelope)


def refused_query(status: int, envelope: Envelope) -> ProviderError:
    """Prometheus rejected a query or aborted it. A timeout has status 422 in Prometheus 2.42 and 503 in 3.5."""
    reason = (
        f"{printable(envelope.errorType)}: {printable(envelope.error)}"
        if envelope.errorType
        else printable(envelope.error)
    )
    if "deadline exceeded" in envelope.error or envelope.errorType == "timeout":
        return ProviderUnreachable(
            f"the query timed out on the server ({status} {reason})",
            hint="Recording rules make the queries cheaper. The server's limit is --query.timeout.",
        )
    hint = "Check the expression in provider.queries, and provider.matchers." if status in (400, 422) else ""
    return ProviderRefused(f"the query was rejected ({status} {reason})", hint=hint)


# --- series ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MatrixSamples:
    """Samples of a response. `keys[k]` is the value of the node label of series k, None if missing; `series`, `time`
    and `value` are as in model.SeriesBatch. `labels` are the label names of series without a key."""

    keys: tuple[str | None, ...]
    labels: frozenset[str]
    series: I64
    time: F64
    value: F64


def read_labels(rows: Iterable[msgspec.Raw]) -> list[dict[str, str]]:
    """Labels of each series of a vector or matrix. Raises ProviderMalformed."""
    try:
        return [_ROW.decode(row).metric for row in rows]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProviderMalformed(f"the labels of the series cannot be read: {printable(str(error))}") from error


def read_samples(matrix: Iterable[msgspec.Raw], *, label: NodeLabel, stale_markers: bool = False) -> MatrixSamples:
    """All samples of a matrix, in ascending times within each series. NaN and infinities are returned; the review
    judges them. With `stale_markers`, a NaN marks the end of a series and is dropped. Raises ProviderMalformed if a
    value is not a number."""
    keys: list[str | None] = []
    labels: set[str] = set()
    counts: list[int] = []
    pairs: list[F64] = []
    for raw in matrix:
        series = _read_series(raw)
        key = series.metric.get(label.label) or None
        if key is None:
            labels.update(series.metric)
        keys.append(without_port(key) if key is not None and label.strip_port else key)
        counts.append(len(series.values))
        # One NumPy call per series: a single call would hold the global lock as long as the decoding.
        pairs.append(np.fromiter(chain.from_iterable(series.values), np.float64, 2 * len(series.values)))
    flat = np.concatenate(pairs) if pairs else np.empty(0)
    index = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    time, value = flat[0::2].copy(), flat[1::2].copy()
    if stale_markers and (ends := np.isnan(value)).any():
        index, time, value = index[~ends], time[~ends], value[~ends]
    return MatrixSamples(tuple(keys), frozenset(labels), *_ascending(index, time, value))


def _read_series(raw: msgspec.Raw) -> _MatrixSeries:
    try:
        return _SERIES.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        odd = _ODD_SERIES.decode(raw)
        return _MatrixSeries(odd.metric, [(time, float(value)) for time, value in odd.values])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ProviderMalformed(f"a value of the series is not a number: {printable(str(error))}") from error


def _ascending(series: I64, time: F64, value: F64) -> tuple[I64, F64, F64]:
    """Sort samples by time if necessary. Prometheus sorts them, other servers may not."""
    if np.any((np.diff(time) < 0) & (np.diff(series) == 0)):
        order = np.lexsort((time, series))
        return series, time[order], value[order]
    return series, time, value


def scrape_interval(matrix: Iterable[msgspec.Raw]) -> float | None:
    """Median interval of consecutive samples of raw series, in whole seconds, at least 1; None with fewer than two
    intervals. Whole seconds, because scrape times jitter by milliseconds and must not change the plan."""
    reading = read_samples(matrix, label=NodeLabel("instance"))
    within = np.diff(reading.series) == 0
    distances = np.diff(reading.time)[within]
    return max(1.0, float(np.rint(np.median(distances)))) if len(distances) >= 2 else None


def batch_of(
    plan: PrometheusQueryPlan, reading: MatrixSamples, nodes: Sequence[str | None], *, since: float, until: float
) -> SeriesBatch | None:
    """Samples of the series with a known node in the requested range (unix seconds), converted to the metric's unit;
    None if there are none. A range selector has whole seconds, so a response may start slightly before `since`."""
    factor = SOURCE_UNITS[plan.candidate.unit][1]
    keep = (reading.time >= since) & (reading.time <= until)
    index = reading.series
    if None in nodes:
        known = np.array([node is not None for node in nodes])
        keep &= known[index]
        index = (np.cumsum(known) - 1)[index]
    if not keep.any():
        return None
    named = tuple(node for node in nodes if node is not None)
    return SeriesBatch(plan.metric, named, index[keep], reading.time[keep], in_unit(reading.value[keep], factor))
