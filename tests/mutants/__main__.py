"""Changes a random sample of places in the code, one at a time, and runs the tests of the folder of each.

    python -m tests.mutants [--mutants N] [--seed TEXT] [--workers N] [--room FOLDER] [--only PATH:LINE]

Prints the mutants that no test notices. Mutants that change nothing that a caller can see are listed in
tests/mutants/equivalent.txt, with the reason. The exit status is 1 if less than 90 % of the others are killed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
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

from tests.mutants.mutations import Mutation, mutations

REPOSITORY = Path(__file__).parents[2]
ROOMS = ("watcher/core", "scorers/plugins", "agent/decision", "agent/qrm/plugins", "watcher/store")
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
GOAL = 0.9
PATIENCE = 10.0
"""The time of a run in units of the time without a mutant."""


@dataclass(frozen=True)
class Mutant:
    """A mutation of a file, by its path in the repository."""

    path: str
    mutation: Mutation

    @property
    def key(self) -> str:
        """The form in equivalent.txt: a line of code and its mutation, since numbers of lines change."""
        line = (REPOSITORY / self.path).read_text().splitlines()[self.mutation.line - 1].strip()
        return f"{self.path}: {line}: {self.mutation}"

    @property
    def tests(self) -> str:
        """The folder of the tests of the file: the nearest that exists."""
        folder = Path(self.path).parent
        while not (REPOSITORY / "tests" / folder).is_dir():
            folder = folder.parent
        return f"tests/{folder}"

    def __str__(self) -> str:
        return f"{self.path}:{self.mutation.line}: {self.mutation}"


def sample(rooms: Sequence[str], *, count: int, seed: str) -> list[Mutant]:
    """Choose lines by chance, and one mutation of each; as many of each room as it has lines."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for room in rooms:
        for path in sorted((REPOSITORY / room).rglob("*.py")):
            for each in mutations(path.read_text()):
                name = str(path.relative_to(REPOSITORY))
                lines.setdefault((name, each.line), []).append(Mutant(name, each))
    chance = random.Random(seed)
    return [chance.choice(lines[each]) for each in chance.sample(sorted(lines), min(count, len(lines)))]


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
        self._seconds: dict[str, float] = {}

    def measure(self, tests: str) -> None:
        """Run tests without a mutant. Raises RuntimeError if they fail."""
        copy, began = self._free.get(), time.monotonic()
        done = _run(copy, tests, timeout=1800)
        self._free.put(copy)
        if done is None or done.returncode:
            raise RuntimeError(f"{tests} fails without a mutant:\n{'' if done is None else done.stdout[-2000:]}")
        self._seconds[tests] = time.monotonic() - began

    def is_killed(self, mutant: Mutant) -> bool:
        """Whether a test fails, or does not end, with a mutant."""
        copy = self._free.get()
        path, source = copy / mutant.path, (REPOSITORY / mutant.path).read_text()
        path.write_text(mutant.mutation.apply(source))
        try:
            done = _run(copy, mutant.tests, timeout=30 + PATIENCE * self._seconds[mutant.tests])
            return done is None or done.returncode != 0
        finally:
            path.write_text(source)
            self._free.put(copy)


def _run(copy: Path, tests: str, *, timeout: float) -> subprocess.CompletedProcess[str] | None:
    """Run tests in a copy; None if they do not end. Examples of hypothesis are the same each time (CI)."""
    environment = {**os.environ, "CI": "1", "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not real", tests]
    try:
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None


def equivalent() -> Iterator[str]:
    """The mutants that are not counted; a line after each has the reason."""
    for line in EQUIVALENT.read_text().splitlines():
        if line and not line.startswith(("#", " ")):
            yield line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sample of mutants; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--mutants", type=int, default=300, help="number of mutants (default: %(default)s)")
    parser.add_argument("--seed", default="1", help="seed of the sample (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    parser.add_argument("--room", action="append", help="a folder of the code; by default " + ", ".join(ROOMS))
    parser.add_argument("--only", help="only the mutants of this place of the sample, PATH:LINE")
    options = parser.parse_args(arguments)
    known = set(equivalent())
    chosen = [
        each
        for each in sample(options.room or ROOMS, count=options.mutants, seed=options.seed)
        if each.key not in known and (not options.only or str(each).startswith(f"{options.only}:"))
    ]
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory, ThreadPoolExecutor(options.workers) as pool:
        checkouts = Checkouts(Path(directory), options.workers)
        list(pool.map(checkouts.measure, sorted({each.tests for each in chosen})))
        rooms, killed = Counter[str](), Counter[str]()
        for mutant, dead in zip(chosen, pool.map(checkouts.is_killed, chosen), strict=True):
            rooms[mutant.tests] += 1
            killed[mutant.tests] += dead
            if not dead:
                print(f"survives: {mutant}", flush=True)
    for room in sorted(rooms):
        print(f"{room}: {killed[room]} of {rooms[room]} killed")
    print(f"{killed.total()} of {rooms.total()} mutants killed (seed {options.seed})")
    return 0 if killed.total() >= GOAL * rooms.total() else 1


if __name__ == "__main__":
    sys.exit(main())
