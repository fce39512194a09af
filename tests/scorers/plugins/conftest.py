"""Fixtures of the tests of plug-ins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.kube import FakeKube


@pytest.fixture
def kube() -> Iterator[FakeKube]:
    with FakeKube() as server:
        yield server
