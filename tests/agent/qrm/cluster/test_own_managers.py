"""Changes of the kubelet's own CPU and Memory Manager while the manager runs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agent.qrm.cluster.own_managers import ManagerReport

OFF = "the kubelet of this node does not set cpusets itself any more"


def put(directory: Path, name: str, policy: str) -> None:
    """Replace a state file by a rename, as the kubelet does."""
    (directory / "fresh").write_text(f'{{"policyName":"{policy}"}}')
    (directory / "fresh").rename(directory / name)


@pytest.mark.parametrize(
    ("name", "off", "on"), [("cpu_manager_state", "none", "static"), ("memory_manager_state", "None", "Static")]
)
def test_a_manager_that_is_switched_on_or_off_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, off: str, on: str
):
    caplog.set_level(logging.INFO)
    put(tmp_path, name, off)
    report = ManagerReport(tmp_path)
    for policy in (off, on, on, off, off, on):
        put(tmp_path, name, policy)
        report.check()
    first, second, third = caplog.messages
    assert f"{tmp_path / name} contains the policy {on}" in first
    assert second == OFF
    assert third == first
