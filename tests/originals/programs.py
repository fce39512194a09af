"""Run the Go programs of the originals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.modules import programs

BUILD = Path(__file__).parents[2] / "scripts" / "go-programs"


def program(name: str) -> Path:
    """The path of an original's program; it is built if the cache does not have it, which takes minutes."""
    module = programs.original(name)
    if module.missing:
        subprocess.run([sys.executable, str(BUILD), "original", name], check=True)
    return module.directory / name


def ask_lines(path: Path, questions: Iterable[Any], *arguments: str) -> list[Any]:
    """Write one JSON value per line to the program's standard input; return one answer per line, in this order."""
    lines = [json.dumps(each) for each in questions]
    done = subprocess.run([str(path), *arguments], input="\n".join(lines), capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(answers) != len(lines):
        raise RuntimeError(
            f"{path.name} ended with status {done.returncode} after {len(answers)} of {len(lines)} answers: "
            f"{done.stderr[-3000:]}"
        )
    return answers
