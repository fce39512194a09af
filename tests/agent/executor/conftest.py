"""Fixtures for tests of the executor: an API server, and a node of its cluster with control groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.executor.node import FakeNode, with_api
from tests.fakes.kube import FakeKube


@pytest.fixture
def server() -> Iterator[FakeKube]:
    with FakeKube() as server:
        yield server


@pytest.fixture
def node(tmp_path: Path, server: FakeKube) -> Iterator[FakeNode]:
    """A node of the cluster, without pods."""
    node = with_api(tmp_path, server)
    yield node
    node.close()


@pytest.fixture
def local_node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node without an API server and without pods."""
    node = FakeNode(tmp_path)
    yield node
    node.close()
