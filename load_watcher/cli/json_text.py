"""JSON of commands and files, in which no character changes the text around it."""

from __future__ import annotations

import json
import re
from typing import Any

from watcher.core.messages import is_unseen

_UNUSUAL = re.compile(r"[^\n -~]")
"""All but printable ASCII characters and line feeds: JSON escapes the control characters below the space itself."""


def json_text(document: Any, *, indent: int | None = None) -> str:
    """The document as JSON. Raises ValueError for NaN and infinity."""
    text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
    return _UNUSUAL.sub(lambda found: json.dumps(found[0])[1:-1] if is_unseen(found[0]) else found[0], text)
