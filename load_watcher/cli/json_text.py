"""JSON of commands and files, in which no character changes the text around it."""

from __future__ import annotations

import json
import re
from typing import Any

_UNSEEN = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff]")
"""DEL and C1 controls, and the bidirectional and invisible characters; JSON escapes the other controls itself."""


def json_text(document: Any, *, indent: int | None = None) -> str:
    """The document as JSON. Raises ValueError for NaN and infinity."""
    text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
