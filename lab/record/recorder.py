"""Polls a service (default: once a minute) and records its nodes, pods and their usage; continues after failures."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from lab.record.builder import TraceBuilder
from lab.record.file import RecordingFile
from lab.traces.records import EndRecord
from watcher import __version__
from watcher.client import Columns, PodColumns, WatcherClient, WatcherError
from watcher.core.messages import with_hint
from watcher.core.pods.observed import ClusterSnapshot
from watcher.decoding.json_text import decode_json
from watcher.model import MetricType, Operator
from watcher.platform.net.failures import cluster_hint, failure_reason
from watcher.platform.net.http_body import TOO_LARGE_HINT, AnswerTooLarge, answer_bound, read_body
from watcher.platform.net.session import client_session

EVERY_S = 60.0
TIMEOUT_S = 30.0


class RecordError(Exception):
    """Recording is impossible; `hint` states what to do."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Recording:
    """Parameters of a recording: the service at `address`, polled every `every` seconds, for `duration` seconds (None:
    until stopped)."""

    address: str
    duration: float | None = None
    every: float = EVERY_S
    token: str | None = None


@dataclass(frozen=True, slots=True)
class RecordingProgress:
    """Progress of a recording: `passed` seconds, number of polls (`polls`), polls without load (`missed`), and the
    content of the file. `trouble` is the reason why the last poll returned no nodes or no load, `usage` why it
    returned no pod usage; "" without a problem."""

    passed: float
    polls: int = 0
    missed: int = 0
    nodes: int = 0
    pods: int = 0
    bindings: int = 0
    records: int = 0
    trouble: str = ""
    usage: str = ""


class _ServiceError(Exception):
    """A request to the service failed; `is_final` states that a retry does not help."""

    def __init__(self, message: str, hint: str, *, is_final: bool) -> None:
        super().__init__(message)
        self.hint = hint
        self.is_final = is_final


async def record(
    recording: Recording,
    file: RecordingFile,
    *,
    stop: asyncio.Event,
    on_progress: Callable[[RecordingProgress], None] = lambda _: None,
) -> RecordingProgress:
    """Record until the duration has passed or `stop` is set, and return the final progress. `on_progress` is called
    after each poll.

    Raises RecordError if the first poll fails permanently. Later, a service that is unavailable, empty or stale causes
    a gap in the recording. Raises OSError if the file cannot be written.
    """
    changes = TraceBuilder(f"{recording.address}, recorded by load-watcher {__version__}")
    began = time.monotonic()
    ends = math.inf if recording.duration is None else began + recording.duration
    progress = RecordingProgress(0.0)
    async with _RecordedService(recording) as service:
        while True:
            considered = time.monotonic()
            progress = await _look(service, changes, file, progress)
            progress = replace(progress, passed=time.monotonic() - began)
            on_progress(progress)
            pause = min(considered + recording.every, ends) - time.monotonic()
            if considered >= ends or await _stopped(stop, pause):
                break
    if changes.time is not None:
        file.append([EndRecord(changes.time)])
    return replace(progress, records=file.records)


async def _stopped(stop: asyncio.Event, pause: float) -> bool:
    """Wait up to `pause` seconds for `stop`. Returns whether it is set."""
    if not stop.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), max(0.0, pause))
    return stop.is_set()


async def _look(
    service: _RecordedService, changes: TraceBuilder, file: RecordingFile, progress: RecordingProgress
) -> RecordingProgress:
    """Poll the service once and append the result to the file."""
    progress = replace(progress, polls=progress.polls + 1)
    try:
        cluster = await service.cluster()
    except _ServiceError as refused:
        if refused.is_final and progress.polls == 1:
            raise RecordError(str(refused), hint=refused.hint) from refused
        return replace(progress, missed=progress.missed + 1, trouble=str(refused))
    if not cluster.nodes:
        message = "the service has no nodes: check its access to the Kubernetes API"
        return replace(progress, missed=progress.missed + 1, trouble=message)
    columns, trouble = await service.columns()
    usage, no_usage = await service.usage()
    file.append(changes.add(cluster, columns, usage))
    return replace(
        progress,
        missed=progress.missed + (columns is None),
        nodes=changes.nodes,
        pods=changes.pods,
        bindings=changes.bindings,
        records=file.records,
        trouble=trouble,
        usage=no_usage,
    )


class _RecordedService:
    """HTTP client of the recorded service."""

    def __init__(self, recording: Recording) -> None:
        self._url = f"{recording.address.rstrip('/')}/scheduler/cluster"
        headers = {"User-Agent": f"load-watcher/{__version__} record"}
        if recording.token is not None:
            headers["Authorization"] = f"Bearer {recording.token}"
        self._session = client_session(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), headers=headers)
        types, operators = (MetricType.CPU, MetricType.MEMORY), (Operator.LATEST,)
        self._client = WatcherClient(
            recording.address, types=types, operators=operators, token=recording.token, timeout=TIMEOUT_S
        )

    async def __aenter__(self) -> _RecordedService:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self._client.close()
        await self._session.close()

    async def cluster(self) -> ClusterSnapshot:
        """Nodes and pods of the service's cluster. Raises _ServiceError."""
        try:
            async with self._session.get(self._url, allow_redirects=False) as response:
                body, status = await read_body(response, answer_bound()), response.status
        except AnswerTooLarge as error:
            raise _ServiceError(f"{self._url}: {error}", TOO_LARGE_HINT, is_final=True) from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            message = f"no response from {self._url}: {failure_reason(error, url=self._url)}"
            hint = "check that load-watcher is running at this address; --url URL selects another service"
            more = cluster_hint(self._url, environ=os.environ, home=Path.home())
            raise _ServiceError(message, "\n".join(filter(None, (hint, more))), is_final=True) from error
        if status == 200:
            try:
                return await asyncio.to_thread(decode_json, body, type=ClusterSnapshot)
            except msgspec.DecodeError as error:
                message = f"{self._url} returned an unexpected response: {error}"
                raise _ServiceError(
                    message, "check that the service is a load-watcher of this version", is_final=True
                ) from error
        raise _refusal(self._url, status)

    async def columns(self) -> tuple[Columns | None, str]:
        """Node load, or the reason why it is unavailable."""
        try:
            return await self._client.refresh(), ""
        except WatcherError as error:
            return None, f"no load: {error}"

    async def usage(self) -> tuple[PodColumns | None, str]:
        """Pod usage, or the reason why it is unavailable. It is usually missing at the first poll, because the
        service fetches pod usage only on request."""
        try:
            return await self._client.refresh_pods(), ""
        except WatcherError as error:
            return None, with_hint(error)


def _refusal(url: str, status: int) -> _ServiceError:
    if status == 404:
        hint = "record needs a service with [scheduler] (any profile), which provides nodes and pods"
        return _ServiceError(f"{url} does not exist: this service does not provide pods", hint, is_final=True)
    if status in (401, 403):
        return _ServiceError(f"{url} returned status {status}: a token is required", "set --token-file", is_final=True)
    hint = "check the log of the service; the request is repeated"
    return _ServiceError(f"{url} returned status {status}", hint, is_final=status not in (429, 500, 502, 503, 504))
