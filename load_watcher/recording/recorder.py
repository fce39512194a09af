"""Asking a service once a minute what there is and what it uses, and writing it down: for hours, through restarts."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import msgspec

from load_watcher.recording.builder import Changes
from load_watcher.recording.file import RecordingFile
from watcher import __version__
from watcher.client import Columns, Pods, WatcherClient, WatcherError
from watcher.core.pods.observed import SeenCluster
from watcher.model import MetricType, Operator
from watcher.traces.records import EndRecord

EVERY_S = 60.0
TIMEOUT_S = 30.0


class RecordError(Exception):
    """Nothing can be recorded; `hint` says what to do."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Recording:
    """What to record: the service at `address`, for `duration` seconds (None: until it is stopped), a look each `every`
    seconds."""

    address: str
    duration: float | None = None
    every: float = EVERY_S
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is: `passed` seconds, `looks` of which `missed` brought nothing, and what is in the file. `trouble` is
    why the last look brought nothing, or brought no load or no usage; "" while all is well."""

    passed: float
    looks: int = 0
    missed: int = 0
    nodes: int = 0
    pods: int = 0
    bindings: int = 0
    records: int = 0
    trouble: str = ""
    usage: str = ""


class _Refused(Exception):
    """A service answered no; `is_final`: asking again will not help."""

    def __init__(self, message: str, hint: str, *, is_final: bool) -> None:
        super().__init__(message)
        self.hint = hint
        self.is_final = is_final


async def record(
    recording: Recording,
    file: RecordingFile,
    *,
    stop: asyncio.Event,
    tell: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Record until the duration is over or `stop` is set; what came of it. `tell` is told after each look.

    Raises RecordError where the service cannot be asked at the very first look, or cannot tell what is needed; later, a
    service that is away, empty or stale leaves a gap. Raises OSError where the file cannot be written any more.
    """
    changes = Changes(f"{recording.address}, recorded by load-watcher {__version__}")
    began = time.monotonic()
    ends = math.inf if recording.duration is None else began + recording.duration
    progress = Progress(0.0)
    async with _Service(recording) as service:
        while True:
            looked = time.monotonic()
            progress = await _look(service, changes, file, progress)
            progress = replace(progress, passed=time.monotonic() - began)
            tell(progress)
            pause = min(looked + recording.every, ends) - time.monotonic()
            if looked >= ends or await _stopped(stop, pause):
                break
    if changes.time is not None:
        file.append([EndRecord(changes.time)])
    return replace(progress, records=file.records)


async def _stopped(stop: asyncio.Event, pause: float) -> bool:
    """Whether it is time to stop, after so long a pause at the latest."""
    if not stop.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), max(0.0, pause))
    return stop.is_set()


async def _look(service: _Service, changes: Changes, file: RecordingFile, progress: Progress) -> Progress:
    """One look at the service, into the file."""
    progress = replace(progress, looks=progress.looks + 1)
    try:
        cluster = await service.cluster()
    except _Refused as refused:
        if refused.is_final and progress.looks == 1:
            raise RecordError(str(refused), hint=refused.hint) from refused
        return replace(progress, missed=progress.missed + 1, trouble=str(refused))
    if not cluster.nodes:
        told = "the service knows no node: can it ask the Kubernetes API?"
        return replace(progress, missed=progress.missed + 1, trouble=told)
    columns, trouble = await service.columns()
    usage, no_usage = await service.usage()
    file.append(changes.take(cluster, columns, usage))
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


class _Service:
    """The service that is recorded."""

    def __init__(self, recording: Recording) -> None:
        self._url = f"{recording.address.rstrip('/')}/scheduler/cluster"
        headers = {"User-Agent": f"load-watcher/{__version__} record"}
        if recording.token is not None:
            headers["Authorization"] = f"Bearer {recording.token}"
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), headers=headers)
        types, operators = (MetricType.CPU, MetricType.MEMORY), (Operator.LATEST,)
        self._client = WatcherClient(
            recording.address, types=types, operators=operators, token=recording.token, timeout=TIMEOUT_S
        )

    async def __aenter__(self) -> _Service:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self._client.close()
        await self._session.close()

    async def cluster(self) -> SeenCluster:
        """Its nodes and pods. Raises _Refused."""
        try:
            async with self._session.get(self._url, allow_redirects=False) as response:
                body, status = await response.read(), response.status
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            told = f"{self._url} cannot be asked: {str(error) or type(error).__name__}"
            raise _Refused(told, "is load-watcher running there? --url URL asks another", is_final=True) from error
        if status == 200:
            try:
                return await asyncio.to_thread(msgspec.json.decode, body, type=SeenCluster)
            except msgspec.DecodeError as error:
                told = f"{self._url} answered something else: {error}"
                raise _Refused(told, "is that load-watcher, of this version?", is_final=True) from error
        raise _refusal(self._url, status)

    async def columns(self) -> tuple[Columns | None, str]:
        """The load of nodes, or why there is none."""
        try:
            return await self._client.refresh(), ""
        except WatcherError as error:
            return None, f"no load: {error}"

    async def usage(self) -> tuple[Pods | None, str]:
        """What pods use, or why that is not known: as a rule not at the first look, since it is what has the service
        ask its source for it."""
        try:
            return await self._client.refresh_pods(), ""
        except WatcherError as error:
            return None, f"{error}. {error.hint}" if error.hint else str(error)


def _refusal(url: str, status: int) -> _Refused:
    if status == 404:
        hint = "record needs a service with [scheduler]: it knows nodes and pods; any profile will do"
        return _Refused(f"{url} does not exist: this service knows nothing of pods", hint, is_final=True)
    if status in (401, 403):
        return _Refused(f"{url} answered {status}: a token is needed", "give --token-file", is_final=True)
    hint = "its log says more; it is asked again"
    return _Refused(f"{url} answered {status}", hint, is_final=status not in (429, 500, 502, 503, 504))
