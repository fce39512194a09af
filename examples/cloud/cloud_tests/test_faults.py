"""The suite of faults of all providers, for Datadog."""

from collections.abc import Sequence
from typing import Any

import pytest

from cloud_tests import fake_datadog as dd
from load_watcher_cloud import datadog
from tests.fakes.prometheus import Asked
from tests.fetches import sections
from tests.watcher.sources.conformance import *  # noqa: F403  # the tests
from tests.watcher.sources.conformance import SECRET, Kind, Sample, idle, milliseconds, options
from watcher.sources.base import (
    Provider,
)


def of_datadog(asked: Asked, samples: Sequence[Sample]) -> bytes:
    if "system.cpu.idle" not in asked.body.decode():
        return dd.answered([], [], [])
    times = sorted({milliseconds(at) for _, at, _ in samples})
    heads = [{"group_tags": [f"host:{node}"], "query_index": 0, "unit": None} for node, _, _ in samples]
    rows = [[idle(value) if milliseconds(at) == time else None for time in times] for _, at, value in samples]
    return dd.answered(heads, times, rows)


def make_datadog(*given: Any) -> Provider:
    return datadog.provider(*sections(**options(*given), app_key=SECRET))


pytestmark = pytest.mark.parametrize("kind", [Kind(make_datadog, of_datadog)], ids=["datadog"])
