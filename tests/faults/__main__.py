"""Run the rows, three at a time, print the table, and end with 1 if one of them is not as expected."""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.faults.rows import ROWS
from tests.faults.running import run
from tests.real.name_server import NAMESPACES

AT_ONCE = 3
DOCS = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "faults.md"
BEGIN, END = "<!-- table: make faults -->", "<!-- end of the table -->"
HEAD = (
    "|fault|`/watcher`|decisions|wrong values|wrong decisions|detected|right again|",
    "|---|---|---|---:|---:|---|---:|",
)


def main() -> int:
    """Run the rows; return 1 if one is not as expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Inject faults, and print a table.")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="rows whose name contains WORD")
    parser.add_argument("--write-docs", action="store_true", help=f"write the table into {DOCS.name}")
    parser.add_argument("--logs", action="store_true", help="print the warnings and errors that were logged")
    options = parser.parse_args()
    if not NAMESPACES:
        parser.error("root and unshare are required, for a file system and a name server of a row")
    chosen = [row for row in ROWS if not options.only or any(word in row.name for word in options.only)]
    with tempfile.TemporaryDirectory(prefix="faults-") as name, ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = []
        for done in as_completed([pool.submit(run, row, Path(name)) for row in chosen]):
            outcome = done.result()
            print(outcome.line(), flush=True)
            for text in (*outcome.problems, *(outcome.warnings if options.logs else ())):
                print(f"    {text}", flush=True)
            outcomes.append(outcome)
    in_order = sorted(outcomes, key=lambda each: (each.row.unknowable, ROWS.index(each.row)))
    table = "\n".join([*HEAD, *(each.line() for each in in_order)])
    print(f"\n{table}")
    if options.write_docs:
        text = DOCS.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        DOCS.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 1 if any(each.problems for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
