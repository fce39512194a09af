"""Selection of the node agents' pods by a Kubernetes label selector.

The grammar is that of `kubectl get pods -l`: requirements separated by commas, which must all match. It is checked
here, so that a mistake is reported when the settings are read, not by an API server that responds 400 to every request.

Pure: no I/O.
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
    """Pods in `namespace` ("": the namespace of this pod) that match `selector` and serve at `port` of their addresses;
    by https if `tls_server_name` is set, which is the name in their certificates."""

    selector: str
    port: int
    namespace: str = ""
    tls_server_name: str = ""


def check_selector(text: str) -> None:
    """Check a label selector. Raises ValueError with the position of the error, also if it selects everything."""
    at = 0
    while True:
        match = _REQUIREMENT.match(text, at)
        if match is None:
            rest = text[at:].strip()
            raise ValueError(f"invalid requirement {rest[:40]!r}" if rest else "a requirement is missing at the end")
        at = match.end()
        if not match[1]:
            return


def is_namespace(text: str) -> bool:
    """Return whether this is a valid name of a namespace (RFC 1123 label)."""
    return _NAMESPACE.fullmatch(text) is not None
