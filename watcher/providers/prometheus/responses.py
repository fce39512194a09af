"""Making sense of what a Prometheus, or whatever stands before it, answers.

Between us and the server may be a proxy, a login page, another implementation of the protocol, or a connection that
broke half-way, so nothing about an answer is taken for granted. And an answer for thousands of nodes is megabytes: a
JSON decoder that takes it in one call holds Python's global lock for that call, and the event loop with it. So the
envelope is decoded first, with each series left as bytes, and then one series at a time.

Pure: bytes in; arrays, labels and errors out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np

from watcher.arrays import F64, I64
from watcher.core.naming.node_index import without_port
from watcher.platform.net.redaction import shown
from watcher.providers.base import ProviderError, ProviderMalformed, ProviderRefused, ProviderUnreachable
from watcher.providers.fetching import PASSING_STATUSES, unexpected
from watcher.providers.prometheus.queries import NodeLabel

API = "the Prometheus API"


class Data(msgspec.Struct, frozen=True):
    """`data` of an answer. A scalar's or string's result also is an array, and is refused for its type."""

    resultType: str = ""  # noqa: N815  (wire name)
    result: list[msgspec.Raw] | None = None


class Envelope(msgspec.Struct, frozen=True):
    """The whole answer, its series still bytes."""

    status: str = ""
    data: Data | None = None
    errorType: str = ""  # noqa: N815  (wire name)
    error: str = ""
    warnings: list[str] | None = None
    isPartial: bool = False  # noqa: N815  (wire name, of VictoriaMetrics)


class _Row(msgspec.Struct, frozen=True):
    metric: dict[str, str] = {}


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str] = {}
    values: list[tuple[float, float]] = []


class _OddSeries(msgspec.Struct, frozen=True):
    """For the values that the quick decoder does not take: "+Inf"."""

    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []


_ENVELOPE = msgspec.json.Decoder(Envelope)
_ROW = msgspec.json.Decoder(_Row)
# Not strict: values are numbers in strings, which this decoder then reads as numbers at no extra cost.
_SERIES = msgspec.json.Decoder(_Series, strict=False)
_ODD_SERIES = msgspec.json.Decoder(_OddSeries)


# --- envelope --------------------------------------------------------------------------------------------------------


def read_envelope(body: bytes, *, content_type: str) -> Envelope:
    """The envelope of an answer with status 200. Raises ProviderMalformed, ProviderRefused."""
    try:
        envelope = _ENVELOPE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise unexpected(
            body, expected=f"the JSON of {API}", api=API, content_type=content_type, problem=str(error)
        ) from error
    if envelope.status == "error":
        raise refused_query(200, envelope)
    if envelope.status != "success" or envelope.data is None or envelope.data.result is None:
        raise ProviderMalformed(
            f"its JSON is not an answer of the Prometheus API: {shown(body[:1024].decode(errors='replace'))}",
            hint="Is provider.address the address of a Prometheus?",
        )
    return envelope


def series_of(envelope: Envelope, *, expects: str) -> Sequence[msgspec.Raw]:
    """The series of an answer of the expected type, "matrix" or "vector". Raises ProviderMalformed."""
    if envelope.data is None or envelope.data.result is None:
        raise ProviderMalformed("it answered without a result")
    found = envelope.data.resultType
    if found != expects:
        # A scalar is what `1 - 0.5` gives: the expression is at fault, and the same every time.
        hint = "The expression must give one value for each node." if found in ("scalar", "string") else ""
        raise ProviderMalformed(f"it answered with a {shown(found) or 'result of no type'}, not a {expects}", hint=hint)
    return envelope.data.result


def missing_part(envelope: Envelope) -> str:
    """What the source says of a part that its answer lacks, "" for a whole answer.

    VictoriaMetrics has a field for it. For Thanos, Mimir, and a Prometheus with a remote storage, it is a warning; but
    Prometheus also warns of queries that it finds odd, in words that begin with PromQL.
    """
    told = [shown(warning) for warning in envelope.warnings or () if not _is_remark(warning)]
    if told:
        return told[0] + (f" (and {len(told) - 1} more)" if len(told) > 1 else "")
    return "it is marked as such (isPartial)" if envelope.isPartial else ""


def remarks(envelope: Envelope) -> tuple[str, ...]:
    """The warnings about the query itself."""
    return tuple(shown(warning) for warning in envelope.warnings or () if _is_remark(warning))


def _is_remark(warning: str) -> bool:
    return warning.startswith("PromQL ")


# --- errors by status ------------------------------------------------------------------------------------------------


def error_of(status: int, *, body: bytes, content_type: str, location: str, authorised: bool) -> ProviderError:
    """What an answer with another status than 200 means, without the address; `authorised` says whether credentials
    were sent, `location` where a redirect leads, without credentials."""
    text = shown(body.decode(errors="replace"))
    if status == 401:
        return ProviderRefused(f"it wants credentials (401): {text}", hint=_credentials_hint(authorised))
    if status == 403:
        return ProviderRefused(
            f"it forbids the query (403): {text}",
            hint="Give the account of provider.token or provider.username the right to query"
            + (" (on OpenShift: cluster-monitoring-view)." if authorised else ", or set one: none was sent."),
        )
    if 300 <= status < 400:
        return ProviderRefused(
            f"it redirects ({status}) to {shown(location) or 'nowhere'}, which is not followed",
            hint="Set provider.address to where the Prometheus API itself is; if that is a login page, set a token.",
        )
    if b"HTTP request to an HTTPS server" in body or b"plain HTTP request was sent to HTTPS" in body:
        return ProviderRefused("it speaks TLS, but was asked in plain HTTP", hint="Use https:// in provider.address.")
    if status == 404:
        return ProviderRefused(
            f"it does not know the path of the query API (404): {text}",
            hint="Is provider.address a Prometheus, and its path what stands before /api/v1, if anything does, such as "
            "/prometheus or /select/0/prometheus?",
        )
    return _error_in_json(status, body=body, text=text)


def _credentials_hint(authorised: bool) -> str:
    if authorised:
        return "It does not accept the provider.token, or the provider.username and password, that were sent."
    return "Set provider.token or provider.token_file, or provider.username and provider.password_file."


def _error_in_json(status: int, *, body: bytes, text: str) -> ProviderError:
    """For the statuses under which Prometheus itself explains what went wrong."""
    try:
        envelope = _ENVELOPE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        envelope = Envelope(error=text)
    if status in PASSING_STATUSES:
        return ProviderUnreachable(f"it is not able to answer ({status}): {shown(envelope.error)}")
    return refused_query(status, envelope)


def refused_query(status: int, envelope: Envelope) -> ProviderError:
    """Prometheus will not run a query, or gave up on it. 2.42 says 422 for a timeout that 3.5 calls 503 (testing.md
    1.4)."""
    reason = f"{shown(envelope.errorType)}: {shown(envelope.error)}" if envelope.errorType else shown(envelope.error)
    if "deadline exceeded" in envelope.error or envelope.errorType == "timeout":
        return ProviderUnreachable(
            f"it took too long over the query ({status} {reason})",
            hint="Recording rules make the queries cheaper; its own limit is --query.timeout.",
        )
    hint = "Check the expression in provider.queries, and provider.matchers." if status in (400, 422) else ""
    return ProviderRefused(f"it does not run the query ({status} {reason})", hint=hint)


# --- series ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """The samples of an answer. `keys[k]` is what the node label of series k says, None where it has none; `series`,
    `time` and `value` are as in model.SeriesBatch. `labels` are the names of the labels on series without a key."""

    keys: tuple[str | None, ...]
    labels: frozenset[str]
    series: I64
    time: F64
    value: F64


def read_labels(rows: Iterable[msgspec.Raw]) -> list[dict[str, str]]:
    """The labels of each series of a vector or matrix. Raises ProviderMalformed."""
    try:
        return [_ROW.decode(row).metric for row in rows]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProviderMalformed(f"the labels of its series cannot be read: {shown(str(error))}") from error


def read_samples(matrix: Iterable[msgspec.Raw], *, label: NodeLabel, stale_markers: bool = False) -> Reading:
    """All samples of a matrix, ascending within each series. NaN and infinities pass: the review judges them; but for
    `stale_markers` a NaN says that the series ended there, and is no sample. Raises ProviderMalformed where a value is
    not a number."""
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
        # One call of NumPy per series: one for all would hold the global lock for as long as the decoding did.
        pairs.append(np.fromiter(chain.from_iterable(series.values), np.float64, 2 * len(series.values)))
    flat = np.concatenate(pairs) if pairs else np.empty(0)
    index = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    time, value = flat[0::2].copy(), flat[1::2].copy()
    if stale_markers and (ends := np.isnan(value)).any():
        index, time, value = index[~ends], time[~ends], value[~ends]
    return Reading(tuple(keys), frozenset(labels), *_ascending(index, time, value))


def _read_series(raw: msgspec.Raw) -> _Series:
    try:
        return _SERIES.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        odd = _ODD_SERIES.decode(raw)
        return _Series(odd.metric, [(time, float(value)) for time, value in odd.values])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ProviderMalformed(f"a value of its series is not a number: {shown(str(error))}") from error


def _ascending(series: I64, time: F64, value: F64) -> tuple[I64, F64, F64]:
    """Prometheus sorts samples by time; whoever else answers may not."""
    if np.any((np.diff(time) < 0) & (np.diff(series) == 0)):
        order = np.lexsort((time, series))
        return series, time[order], value[order]
    return series, time, value


def scrape_interval(matrix: Iterable[msgspec.Raw]) -> float | None:
    """The median distance of consecutive samples of raw series, in whole seconds, at least one; None below three
    samples. Whole, because scrape times jitter by milliseconds and a plan must not change with them."""
    reading = read_samples(matrix, label=NodeLabel("instance"))
    within = np.diff(reading.series) == 0
    distances = np.diff(reading.time)[within]
    return max(1.0, float(np.rint(np.median(distances)))) if len(distances) >= 2 else None
