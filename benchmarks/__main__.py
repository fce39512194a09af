"""Run the benchmarks, one after the other, and print what they print.

    python -m benchmarks                      # all of them: some ten minutes on a quiet machine
    python -m benchmarks serving tick         # some of them
    python -m benchmarks --write-docs         # and put the tables into docs/performance.md
    python -m benchmarks --quick              # tiny, to see that they run; the numbers mean nothing

Whatever `bench_NAME.py` prints is Markdown. `--write-docs` puts it between the lines `<!-- benchmark: NAME -->` and
`<!-- /benchmark -->` of the document, with the command, the date and the machine.
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
DOCUMENT = HERE.parent / "docs" / "performance.md"
QUICK = {
    "agent": "--pods 5 --cycles 2",
    "kube": "--pods 100",
    "dashboard": "--nodes 50 --rounds 1",
    "engines": "--nodes 20",
    "pods": "--pods 50 100 --rounds 1",
    "provider": "--nodes 20",
    "qrm": "--pods 5 --rounds 5",
    "scoring": "--nodes 50 100 --rounds 3",
    "serving": "--nodes 50 --seconds 1 --rounds 1",
    "simulate": "--nodes 10 --pods 40 --hours 1",
    "size": "--nodes 50 100 --ticks 2",
    "start": "--nodes 20 --rounds 1",
    "store": "--nodes 50 --hours 2",
    "tick": "--nodes 50 --real 20 --ticks 2",
}


def available() -> list[str]:
    """The names of all benchmarks."""
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def run(name: str, arguments: Sequence[str]) -> str:
    """What a benchmark prints. Raises CalledProcessError where it fails."""
    command = [sys.executable, "-m", f"benchmarks.bench_{name}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}  # the checkout, wherever another copy is installed
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=HERE.parent, env=environment
    ).stdout


def section(name: str, arguments: Sequence[str], output: str) -> str:
    """What stands in the document: where it comes from, then what was printed, as it is if it is a table."""
    command = shlex.join(["python", "-m", f"benchmarks.bench_{name}", *arguments])
    body = output.strip() if "\n|" in output else f"```text\n{output.strip()}\n```"
    return f"`{command}`, {machine()}\n\n{body}\n"


def written(document: str, name: str, text: str) -> str:
    """The document with the section of a benchmark replaced; unchanged if it has none."""
    marked = re.compile(rf"(<!-- benchmark: {re.escape(name)} -->\n).*?(<!-- /benchmark -->)", re.DOTALL)
    return marked.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", document)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(available())}; all if none is named")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/performance.md")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    options = parser.parse_args()
    unknown = set(options.names) - set(available())
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(available())}")
    if options.quick and options.write_docs:
        parser.error("the numbers of --quick mean nothing and do not go into the documents")
    failed = [name for name in options.names or available() if not _run_and_show(name, options)]
    return 1 if failed else 0


def _run_and_show(name: str, options: argparse.Namespace) -> bool:
    arguments = shlex.split(QUICK.get(name, "")) if options.quick else []
    print(f"\n== {name}\n", flush=True)
    began = time.monotonic()
    try:
        output = run(name, arguments)
    except subprocess.CalledProcessError as error:
        print(f"benchmark {name} ended with code {error.returncode}", file=sys.stderr)
        return False
    print(f"{output}({time.monotonic() - began:.0f} s)", flush=True)
    if options.write_docs:
        document = DOCUMENT.read_text()
        DOCUMENT.write_text(written(document, name, section(name, arguments, output)))
    return True


if __name__ == "__main__":
    raise SystemExit(main())
