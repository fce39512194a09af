"""The duration of test modules: `python -m tests.durations FILE` records them from a file of `--junitxml`.

Long modules start first (tests/conftest.py), so that no worker runs one alone at the end.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

RECORD = Path(__file__).with_name("durations.json")
SHORTEST_S = 5.0
"""Shorter modules are not recorded. A module without a record counts as this long."""


def read_durations() -> dict[str, float]:
    """Seconds per module."""
    found: dict[str, float] = json.loads(RECORD.read_text())
    return found


def measured(report: Path) -> dict[str, float]:
    """Seconds per module in a JUnit report, for the recorded modules."""
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        module = case.get("classname") or ""
        seconds[module] += float(case.get("time") or 0.0)  # type: ignore[assignment]
    return {name: round(value) for name, value in sorted(seconds.items()) if value >= SHORTEST_S}


if __name__ == "__main__":
    RECORD.write_text(json.dumps(measured(Path(sys.argv[1])), indent=1) + "\n")
