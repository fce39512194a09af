"""Pictures of the dashboard for the documentation, with the demo of 24 nodes.

 python -m tests.real.pictures docs/images

This takes about a minute, in which the demo writes its history of a day.
"""

import argparse
import tempfile
from pathlib import Path

from tests.lab.demo.test_demo import Demo
from tests.real.browser import Tab, chromium, tab
from tests.waiting import wait_for

VIEWS = {"fleet": "Load of the fleet, last", "risk": "is configured in the profile default"}
WARNINGS = 3
DAY_S = 23 * 3600
FILLED_SECONDS = 300.0


def save(demo: Demo, opened: Tab, view: str, file: Path) -> None:
    """Save a view at its full height."""
    opened.open(f"{demo.url}/#/{view}", shows=VIEWS[view])
    opened.page.wait_for_load_state("networkidle")
    opened.page.screenshot(path=file, full_page=True)


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    directory: Path = parser.parse_args().directory
    with tempfile.TemporaryDirectory() as temporary, Demo(Path(temporary)) as demo:
        demo.wait_for_status(200, "/readyz")

        def is_filled() -> bool:
            counts, time = demo.get("/api/v1/problems").json()["counts"], demo.get("/api/v1/trend").json()["time"]
            has_faults = counts["critical"] >= 1 and counts["warning"] >= WARNINGS
            return bool(has_faults and time and time[-1] - time[0] >= DAY_S)

        wait_for(is_filled, what=f"{WARNINGS} warnings, and the load of a day", timeout=FILLED_SECONDS)
        with chromium() as browser, tab(browser) as opened:
            for view in VIEWS:
                save(demo, opened, view, directory / f"{view}.png")


if __name__ == "__main__":
    main()
