"""Which pods the node agents are: the labels by which they are found, as Kubernetes writes a selector.

The grammar is that of `kubectl get pods -l`: requirements separated by commas, all of which must hold. It is checked
here so that a slip is told when the settings are read, and not by a server that answers 400 for as long as it is asked.

Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_KEY = rf"(?:(?=.{{1,253}}/){_DOMAIN}(?:\.{_DOMAIN})*/)?{_NAME}"
_VALUE = rf"(?:{_NAME})?"
_VALUES = rf"\(\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*\)"
_REQUIREMENT = re.compile(
    rf"\s*(?:!\s*{_KEY}|{_KEY}(?:\s*(?:==|!=|=)\s*{_VALUE}|\s*[<>]\s*\d+|\s+(?:in|notin)\s*{_VALUES})?)\s*(,|$)",
    re.ASCII,
)
_NAMESPACE = re.compile(_DOMAIN, re.ASCII)

SELECTOR_EXAMPLE = "app.kubernetes.io/name=load-watcher-agent"


@dataclass(frozen=True, slots=True)
class PodSelection:
    """Pods of `namespace` ("": our own) whose labels are as `selector` wants them, that answer at `port` of their
    addresses: by https if there is a `tls_server_name`, whom their certificates are then for."""

    selector: str
    port: int
    namespace: str = ""
    tls_server_name: str = ""


def check_selector(text: str) -> None:
    """Raises ValueError, which says where, for what is no selector of labels, or one that selects everything."""
    at = 0
    while True:
        match = _REQUIREMENT.match(text, at)
        if match is None:
            rest = text[at:].strip()
            raise ValueError(f"no requirement is {rest[:40]!r}" if rest else "a requirement is missing at its end")
        at = match.end()
        if not match[1]:
            return


def is_namespace(text: str) -> bool:
    """Whether this can be the name of a namespace (RFC 1123)."""
    return _NAMESPACE.fullmatch(text) is not None
