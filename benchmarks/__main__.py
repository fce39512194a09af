"""Run the benchmarks one after another and print their output.

    python -m benchmarks                      # all benchmarks: about ten minutes on an idle machine
    python -m benchmarks serving tick         # selected benchmarks
    python -m benchmarks --write-docs         # also update the tables in docs/concepts/performance.md
    python -m benchmarks --quick              # small sizes, to check that all run; the numbers are meaningless

The output of `bench_NAME.py` is Markdown. `--write-docs` inserts it between the lines `<!-- benchmark: NAME -->` and
`<!-- /benchmark -->` of the document, with the command, the date, and the machine.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import machine

HERE = Path(__file__).parent
DOCUMENT = HERE.parent / "docs" / "concepts" / "performance.md"
QUICK = {
    "agent": "--pods 5 --cycles 2",
    "backtest": "--deals 1",
    "kube": "--pods 100",
    "forecast": "--nodes 300",
    "dashboard": "--nodes 50 --rounds 1",
    "engines": "--nodes 20",
    "extender": "--nodes 20 --rounds 5 --seconds 1",
    "nri": "--pods 5 --rounds 5",
    "pods": "--pods 50 100 --rounds 1",
    "latency": "--nodes 20 --requests 50",
    "provider": "--sizes 20x2",
    "report": "--nodes 4 --pods 5 --days 2",
    "qrm": "--pods 5 --rounds 5",
    "scheduler": "--nodes 10 --pods 5 --rounds 1",
    "scoring": "--nodes 50 100 --rounds 3",
    "serving": "--nodes 50 --seconds 1 --rounds 1",
    "simulate": "--nodes 10 --pods 40 --hours 1",
    "size": "--nodes 50 100 --ticks 2",
    "start": "--nodes 20 --rounds 1",
    "store": "--nodes 50 --hours 2",
    "tick": "--nodes 50 --real 20 --ticks 2",
}


def available() -> list[str]:
    """Return the names of all benchmarks."""
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def run(name: str, arguments: Sequence[str]) -> str:
    """Run a benchmark and return its output. Raises CalledProcessError on failure."""
    command = [sys.executable, "-m", f"benchmarks.bench_{name}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}  # this checkout, even if another copy is installed
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=HERE.parent, env=environment
    ).stdout


def section(name: str, arguments: Sequence[str], output: str) -> str:
    """Return the section for the document: command and machine, then the output, as a code block unless it is a
    table. The padding of tables is for terminals only."""
    command = shlex.join(["python", "-m", f"benchmarks.bench_{name}", *arguments])
    body = tight(output.strip()) if "\n|" in output else f"```text\n{output.strip()}\n```"
    return f"`{command}`, {machine()}\n\n{body}\n"


def tight(text: str) -> str:
    """Return Markdown whose tables have no padding, and the unit of a column in its header if all cells have it."""
    table = re.compile(r"(?:^\|.*\|$\n?)+", re.MULTILINE)
    return table.sub(lambda found: _tight_table(found[0].splitlines()) + "\n", text + "\n").rstrip("\n")


def _tight_table(lines: Sequence[str]) -> str:
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    rows[1] = [re.sub("-{3,}", "---", cell) for cell in rows[1]]
    columns = [list(column) for column in zip(*rows, strict=True)]
    for column in columns[1:]:
        header, _, *cells = column
        units = {cell.partition(" ")[2] if cell[0].isdigit() else "" for cell in cells if cell not in ("", "–")}
        if len(units) == 1 and (unit := units.pop()):
            column[0] = f"{header}, {unit}".removeprefix(", ")
            column[2:] = [cell.removesuffix(f" {unit}") for cell in cells]
    return "\n".join(f"|{'|'.join(row)}|" for row in zip(*columns, strict=True))


def written(document: str, name: str, text: str) -> str:
    """Return the document with the section of a benchmark replaced; unchanged if it has no such section."""
    marked = re.compile(rf"(<!-- benchmark: {re.escape(name)} -->\n).*?(<!-- /benchmark -->)", re.DOTALL)
    return marked.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", document)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"benchmarks to run: {', '.join(available())} (default: all)"
    )
    parser.add_argument("--write-docs", action="store_true", help="write the tables to docs/concepts/performance.md")
    parser.add_argument("--quick", action="store_true", help="use small sizes to check that all benchmarks run")
    options = parser.parse_args()
    unknown = set(options.names) - set(available())
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; available: {', '.join(available())}")
    if options.quick and options.write_docs:
        parser.error("--quick cannot be combined with --write-docs: its numbers are meaningless")
    failed = [name for name in options.names or available() if not _run_and_show(name, options)]
    return 1 if failed else 0


def _run_and_show(name: str, options: argparse.Namespace) -> bool:
    arguments = shlex.split(QUICK.get(name, "")) if options.quick else []
    print(f"\n== {name}\n", flush=True)
    began = time.monotonic()
    try:
        output = run(name, arguments)
    except subprocess.CalledProcessError as error:
        print(f"benchmark {name} failed with exit code {error.returncode}", file=sys.stderr)
        return False
    print(f"{output}({time.monotonic() - began:.0f} s)", flush=True)
    if options.write_docs:
        document = DOCUMENT.read_text()
        DOCUMENT.write_text(written(document, name, section(name, arguments, output)))
    return True


if __name__ == "__main__":
    raise SystemExit(main())
