"""`load-watcher agent demo`: it shows a plan anywhere, and throttles and restores its processes as root."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.service import demo
from load_watcher import main

ROOT = Path("/sys/fs/cgroup")


def groups() -> list[Path]:
    return [*ROOT.glob("load-watcher-demo-*"), *ROOT.glob("*/load-watcher-demo-*")]


@pytest.mark.slow
def test_the_demo_ends_and_leaves_nothing():
    result = CliRunner().invoke(main.main, ["agent", "demo", "--seconds", "20"], prog_name="load-watcher")
    assert 0 == result.exit_code, result.output
    assert "demo.high: cpu_total_usage is" in result.stdout
    assert "triggered, action throttle" in result.stdout
    assert "web ends" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("are removed")
    writable = os.geteuid() == 0 and os.access(ROOT / "cpu", os.W_OK)
    assert ("done: its quota is" in result.stdout) is (writable or "preview only" not in result.stdout)
    assert not groups()


@pytest.mark.slow
def test_the_demo_shows_the_plan_without_control_groups(tmp_path: Path):
    lines: list[str] = []
    demo.run(lines.append, seconds=12.0, cgroup=tmp_path)
    text = "\n".join(lines)
    assert "preview only" in text
    assert "would set the CPU quota of demo/batch-a" in text
    assert not groups()
