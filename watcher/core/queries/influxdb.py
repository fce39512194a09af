"""Syntax of configured InfluxDB queries: dialects and the placeholders for the time range."""

from __future__ import annotations

DIALECTS = ("influxql", "flux")


SINCE, UNTIL = "<since>", "<until>"


def is_template(expression: str) -> bool:
    """Whether the expression contains both time placeholders."""
    return SINCE in expression and UNTIL in expression
