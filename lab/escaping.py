"""Names and texts from outside in HTML and SVG."""

from __future__ import annotations

import html

from watcher.core.messages import visible


def escape(text: str, *, quote: bool = True) -> str:
    """The text as HTML, with control and bidirectional characters as visible escapes: XML refuses the first, and the
    others change the order of the text around them."""
    return html.escape(visible(text), quote=quote)
