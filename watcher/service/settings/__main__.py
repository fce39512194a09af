"""Prints what is generated from the settings: `python -m watcher.service.settings docs > docs/reference/settings.md`,
`example`, or `schema`, the JSON schema of a settings file."""

import json
import sys
from collections.abc import Callable

from watcher.service.settings.reference import documentation, example, json_schema

PAGES: dict[str, Callable[[], str]] = {
    "docs": documentation,
    "example": example,
    "schema": lambda: json.dumps(json_schema(), indent=2) + "\n",
}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in PAGES:
        sys.exit(f"usage: python -m watcher.service.settings {'|'.join(PAGES)}")
    sys.stdout.write(PAGES[sys.argv[1]]())
