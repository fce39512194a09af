"""Time until the dashboard shows its first picture, and its longest frames.

    python -m benchmarks.bench_dashboard                     # 5,000 nodes, about a minute
    python -m benchmarks.bench_dashboard --nodes 50 --rounds 1

A headless Chromium opens the dashboard of a real `load-watcher serve` that reads from a real Prometheus. The first
picture is complete at the first frame after the list of cells contains all nodes; the time starts at the navigation,
with an empty cache. Frames are measured while keys are pressed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cluster import still_service
from benchmarks.report import Table, amount, at_most
from benchmarks.source import names
from tests.real.browser import Tab, chromium, tab
from tests.service import Service

FIRST_MS = 1000.0
STEPS = 40  # keys pressed in a row

# Runs before the scripts of the page.
WATCH = """
window.frames_ms = [];
let last = performance.now();
const all = () => {
  const option = document.querySelector('[role=listbox] [role=option]');
  return option && option.getAttribute('aria-setsize') === '%d' && document.querySelector('canvas').height > 0;
};
const frame = (now) => {
  window.frames_ms.push(now - last);
  last = now;
  if (!window.first_ms && all()) requestAnimationFrame(() => { window.first_ms = performance.now(); });
  requestAnimationFrame(frame);
};
requestAnimationFrame(frame);
"""
# Not page.wait_for_function, which evaluates text in the page when it polls; the page's security policy forbids that.
SHOWN = """new Promise((done, late) => {
  setTimeout(() => late(new Error('no picture within a minute')), 60_000);
  const look = () => (window.first_ms ? done(window.first_ms) : requestAnimationFrame(look));
  look();
})"""
# Transferred bytes, including the document; 0 for files from the cache.
LOADED = "performance.getEntries().reduce((sum, each) => sum + (each.transferSize ?? 0), 0)"


def first_picture(opened: Tab, url: str) -> float:
    """Return the milliseconds from the navigation to the frame after the picture."""
    opened.page.goto("about:blank")
    opened.page.goto(url)
    return float(opened.page.evaluate(SHOWN))


def longest_frame(opened: Tab, work: Callable[[], None]) -> float:
    """Return the longest frame while `work` runs, in milliseconds."""
    opened.page.evaluate("window.frames_ms = []")
    work()
    found = opened.page.evaluate(
        "new Promise((done) => requestAnimationFrame(() => done(Math.max(...window.frames_ms))))"
    )
    return float(found)


def measure(service: Service, browser: Any, *, nodes: int, rounds: int) -> dict[str, float]:
    """Return medians over the rounds by measurement; each round uses a separate browser context."""
    found: dict[str, list[float]] = {}

    def note(what: str, value: float) -> None:
        found.setdefault(what, []).append(value)

    for _ in range(rounds):
        with tab(browser) as opened:
            opened.page.add_init_script(WATCH % nodes)
            note("first", first_picture(opened, f"{service.url}/#/fleet"))
            note("loaded", float(opened.page.evaluate(LOADED)))
            note("again", first_picture(opened, f"{service.url}/#/fleet"))
            opened.page.get_by_role("listbox", name="Nodes as cells").focus()
            note("walk", longest_frame(opened, lambda: opened.press(*["ArrowRight", "ArrowDown"] * (STEPS // 2))))
            note("filter", longest_frame(opened, lambda: narrow(opened, names(nodes)[0])))
            note("sort", longest_frame(opened, lambda: sort_all(opened)))
    return {what: statistics.median(values) for what, values in found.items()}


def narrow(opened: Tab, name: str) -> None:
    """Filter to one node, then show all again."""
    text = opened.page.get_by_label("Name contains")
    text.press_sequentially(name)
    text.fill("")


def sort_all(opened: Tab) -> None:
    """Select each sort order in turn."""
    for order in ("deviation", "age", "name", "load"):
        opened.page.get_by_label("Sort by").select_option(order)


def report(found: dict[str, float], *, nodes: int, rounds: int) -> str:
    """Return the table of results."""
    table = Table(f"The dashboard, {nodes:,} nodes, medians of {rounds}", ["what", "time", "goal"])
    first = found["first"]
    table.add("first picture, empty cache", amount(first, "ms"), at_most(first, FIRST_MS, "ms"))
    table.add(
        "first picture, files in the cache", amount(found["again"], "ms"), at_most(found["again"], FIRST_MS, "ms")
    )
    table.add(f"longest frame while {STEPS} keys move through the cells", amount(found["walk"], "ms"), "")
    table.add("longest frame while a name filter is typed", amount(found["filter"], "ms"), "")
    table.add("longest frame while the sort order changes", amount(found["sort"], "ms"), "")
    table.notes.append(
        f"{amount(found['loaded'] / 1e6, 'MB')} are loaded. The browser draws without a graphics card on the "
        "service's cores; a frame on time takes 17 ms."
    )
    return table.markdown()


def main() -> None:
    """Run the measurements and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        chromium() as browser,
        still_service(Path(directory), nodes=wanted.nodes) as service,
    ):
        found = measure(service, browser, nodes=wanted.nodes, rounds=wanted.rounds)
    print(report(found, nodes=wanted.nodes, rounds=wanted.rounds))


if __name__ == "__main__":
    main()
