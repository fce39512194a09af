"""Syntax of PromQL that settings need: whether an expression is a plain series selector."""

from __future__ import annotations

import re

from watcher.core.queries.matchers import BARE_LABEL, STRING

# A string by itself is the name of the metric, before an operator the name of a label (Prometheus 3).
_MATCHER = rf"(?:{STRING}|(?:{STRING}|{BARE_LABEL})\s*(?:=~|!~|!=|=)\s*{STRING})"
_MATCHERS = rf"\{{\s*(?:{_MATCHER}\s*(?:,\s*{_MATCHER}\s*)*,?\s*)?\}}"
_SELECTOR = re.compile(rf"(?:[a-zA-Z_:][a-zA-Z0-9_:]*\s*(?:{_MATCHERS})?|{_MATCHERS})")


def is_plain(expression: str) -> bool:
    """Whether the expression is a metric name or selector, to which a range `[60s]` can be appended."""
    return _SELECTOR.fullmatch(expression.strip()) is not None
