"""Names of resources as Kubernetes defines them, and texts of plug-ins for messages."""

from __future__ import annotations

import re

from watcher.core.messages import printable

SHOWN_CHARACTERS = 64
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_PREFIX = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
LONGEST_PREFIX = 253


def is_resource_name(name: str) -> bool:
    """Whether the text is a qualified name: up to 63 letters, digits, '-', '_' and '.', with an optional DNS subdomain
    before a '/'."""
    prefix, slash, own = name.rpartition("/")
    if slash and (len(prefix) > LONGEST_PREFIX or not _PREFIX.fullmatch(prefix)):
        return False
    return _NAME.fullmatch(own) is not None


def shown(text: str) -> str:
    """The text in quotes, printable and shortened to SHOWN_CHARACTERS."""
    line = printable(text[: 4 * SHOWN_CHARACTERS])
    return repr(line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…")
