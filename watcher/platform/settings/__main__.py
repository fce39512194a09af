"""Prints the generated pages: `python -m watcher.platform.settings docs > docs/reference/settings.md`, or `example`."""

import sys

from watcher.platform.settings.reference import documentation, example

PAGES = {"docs": documentation, "example": example}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in PAGES:
        sys.exit(f"usage: python -m watcher.platform.settings {'|'.join(PAGES)}")
    sys.stdout.write(PAGES[sys.argv[1]]())
