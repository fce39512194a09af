"""Changes a random sample of places in the code, one at a time, and runs the tests of the room of each.

    python -m tests.mutants [--mutants N] [--seed TEXT] [--workers N] [--room FOLDER] [--report FILE]

Prints the mutants that no test notices. Mutants that change nothing that a caller can see are listed in
tests/mutants/equivalent.txt, with the reason. The exit status is 1 if less than 90 % of the others are killed.

Of a mutant, the tests of its module run first, then the other fast tests of the same folder, those of the room, the
slow ones of the folder, and those of the folder that need a real component, if it is there. With --report, each result
is written to a file when it is known, and a run that finds such a file does not repeat the mutants that a test has
killed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.mutants.mutations import Mutation, mutations

REPOSITORY = Path(__file__).parents[2]
ROOMS = ("watcher/core", "scorers/plugins", "agent/decision", "agent/qrm/plugins", "watcher/store")
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
GOAL = 0.9
PATIENCE = 10.0
"""The time of a run in units of the time that the fast, slow or real tests of the room need without a mutant."""
TEST_SECONDS = 60
"""The time of a single test, after which a mutant counts as an endless loop."""
FAST, SLOW, REAL = "not real and not slow", "slow and not real", "real"


@dataclass(frozen=True)
class Mutant:
    """A mutation of a file, by its path in the repository."""

    room: str
    path: str
    code: str
    mutation: Mutation

    @property
    def key(self) -> str:
        """The form in equivalent.txt: a line of code in a function and its mutation, since numbers of lines change."""
        return ": ".join(filter(None, (self.path, self.mutation.scope, self.code, str(self.mutation))))

    def __str__(self) -> str:
        return f"{self.path}:{self.mutation.line}: {self.mutation}"


def sample(rooms: Sequence[str], *, count: int, seed: str) -> list[Mutant]:
    """Choose lines by chance, and one mutation of each; as many of each room as it has lines."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for room in rooms:
        for path in sorted((REPOSITORY / room).rglob("*.py")):
            source = path.read_text()
            code, name = source.splitlines(), str(path.relative_to(REPOSITORY))
            for each in mutations(source):
                lines.setdefault((name, each.line), []).append(Mutant(room, name, code[each.line - 1].strip(), each))
    chance = random.Random(seed)
    return [chance.choice(lines[each]) for each in chance.sample(sorted(lines), min(count, len(lines)))]


def runs(mutant: Mutant, root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield pairs of a marker expression and files of tests, those first that kill soonest."""
    folder = Path(mutant.path).parent
    while not (root / "tests" / folder).is_dir():
        folder = folder.parent
    mirror = f"test_{Path(mutant.path).stem}.py"
    near = sorted((root / "tests" / folder).rglob("test_*.py"), key=lambda each: (each.name != mirror, each))
    rest = sorted(set((root / "tests" / mutant.room).rglob("test_*.py")) - set(near))
    for marker, files in (FAST, near), (FAST, rest), (SLOW, near), (REAL, near):
        if files:
            yield marker, [str(each.relative_to(root)) for each in files]


class Checkouts:
    """Copies of the checkout, one per worker, in which a mutant runs."""

    def __init__(self, directory: Path, count: int) -> None:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY, capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        self._free: SimpleQueue[Path] = SimpleQueue()
        for number in range(count):
            copy = directory / str(number)
            for name in listed:
                if (REPOSITORY / name).is_file():
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(REPOSITORY / name, copy / name)
            self._free.put(copy)
        self._seconds: dict[tuple[str, str], float] = {}

    def measure(self, room: str) -> None:
        """Run the tests of a room without a mutant. Raises RuntimeError if they fail."""
        copy = self._free.get()
        for marker in FAST, SLOW, REAL:
            began = time.monotonic()
            failure = _run(copy, marker, [f"tests/{room}"], timeout=1800)
            if failure is not None:
                raise RuntimeError(f"tests/{room} fails without a mutant: {failure}")
            self._seconds[room, marker] = time.monotonic() - began
        self._free.put(copy)

    def killer(self, mutant: Mutant) -> str | None:
        """Return the test that fails, or does not end, with a mutant; None if no test does."""
        copy = self._free.get()
        path = copy / mutant.path
        source = path.read_text()
        path.write_text(mutant.mutation.apply(source))
        try:
            for marker, files in runs(mutant, copy):
                # Two mutants of a file can have the same size and be written in the same second.
                Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
                timeout = 30 + PATIENCE * self._seconds[mutant.room, marker]
                failure = _run(copy, marker, files, timeout=timeout)
                if failure is not None:
                    return failure
            return None
        finally:
            path.write_text(source)
            self._free.put(copy)


def _run(copy: Path, marker: str, files: Sequence[str], *, timeout: float) -> str | None:
    """Run tests in a copy; return the first that fails. Examples of hypothesis are the same each time (CI)."""
    environment = {**os.environ, "CI": "1", "PYTHONPATH": str(copy)}
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_SECONDS}", "-m", marker]
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            output = f"ERROR more than {timeout:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else f"pytest exits with {process.returncode}: {output[-300:]!r}"


def equivalent() -> Iterator[str]:
    """The mutants that are not counted; a line after each has the reason."""
    for line in EQUIVALENT.read_text().splitlines():
        if line and not line.startswith(("#", " ")):
            yield line


class Report:
    """Results in a file: a line with the result and the key of each mutant, and an indented one with the test."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.killed = {line.removeprefix("killed: ") for line in lines if line.startswith("killed: ")}

    def add(self, mutant: Mutant, killer: str | None) -> None:
        if killer is None:
            print(f"survives: {mutant}", flush=True)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(f"survives: {mutant.key}\n" if killer is None else f"killed: {mutant.key}\n    {killer}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sample of mutants; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--mutants", type=int, default=300, help="number of mutants (default: %(default)s)")
    parser.add_argument("--seed", default="1", help="seed of the sample (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    parser.add_argument("--room", action="append", help="a folder of the code; by default " + ", ".join(ROOMS))
    parser.add_argument("--only", help="only the mutants of this place of the sample, PATH:LINE")
    parser.add_argument("--report", type=Path, help="file of results; mutants that are killed in it do not run again")
    options = parser.parse_args(arguments)
    known, report = set(equivalent()), Report(options.report)
    listed, killed, survived = Counter[str](), Counter[str](), Counter[str]()
    chosen = []
    for each in sample(options.room or ROOMS, count=options.mutants, seed=options.seed):
        if options.only and not str(each).startswith(f"{options.only}:"):
            continue
        if each.key in known:
            listed[each.room] += 1
        elif each.key in report.killed:
            killed[each.room] += 1
        else:
            chosen.append(each)
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory, ThreadPoolExecutor(options.workers) as pool:
        checkouts = Checkouts(Path(directory), options.workers)
        list(pool.map(checkouts.measure, sorted({each.room for each in chosen})))
        for mutant, killer in zip(chosen, pool.map(checkouts.killer, chosen), strict=True):
            report.add(mutant, killer)
            (survived if killer is None else killed)[mutant.room] += 1
    for room in sorted(listed | killed | survived):
        print(f"{room}: {killed[room]} killed, {survived[room]} survive, {listed[room]} are equivalent")
    print(f"{killed.total()} of {killed.total() + survived.total()} mutants killed (seed {options.seed})")
    return 0 if killed.total() >= GOAL * (killed.total() + survived.total()) else 1


if __name__ == "__main__":
    sys.exit(main())
