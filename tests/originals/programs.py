"""The Go programs of the originals, in `<cache>/originals/NAME/<hash of the module's files>/NAME`."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODULE_FILES = ("go.mod", "go.sum", "*.go")


def program(name: str) -> Path:
    """The path of a program; it is built if the cache does not have it, which takes minutes."""
    module = HERE / name
    path = _cache() / "originals" / name / _hash(module) / name
    if not path.exists():
        print(f"building {name} into {path} (several minutes with an empty Go build cache)", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        built = path.with_suffix(".new")
        subprocess.run(["nice", "-n", "10", "go", "build", "-o", str(built), "."], cwd=module, check=True)
        built.replace(path)
    return path


def _cache() -> Path:
    if given := os.environ.get("LOAD_WATCHER_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "load-watcher"


def _hash(module: Path) -> str:
    digest = hashlib.sha256()
    for each in sorted(path for pattern in MODULE_FILES for path in module.glob(pattern)):
        digest.update(each.name.encode() + b"\0" + each.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


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
