"""Selection of the node agents' pods by a Kubernetes label selector.

The grammar is that of `kubectl get pods -l`: requirements separated by commas, which must all match. It is checked
here, so that a mistake is reported when the settings are read, not by an API server that responds 400 to every request.

Pure: no I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated, Any

from watcher.core.config import addresses, values
from watcher.core.config.values import InvalidValue

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


def _read_selector(value: Any) -> str:
    text: str = values.TEXT.read(value)
    try:
        check_selector(text)
    except ValueError as error:
        raise InvalidValue(f"{values.describe(value)} is not a label selector: {error}") from None
    return text


def _read_namespace(value: Any) -> str:
    text: str = values.TEXT.read(value)
    if not _NAMESPACE.fullmatch(text):
        raise InvalidValue
    return text


def _read_host(value: Any) -> str:
    text: str = values.TEXT.read(value)
    address = addresses.ADDRESS.read(f"https://{text}")
    if address != f"https://{text}" or set(text) & set("/:@"):
        raise InvalidValue
    return text


_SELECTOR = replace(values.TEXT, read=_read_selector)
_NAMESPACE_NAME = replace(values.TEXT, accepts="a valid namespace name", read=_read_namespace)
_HOST_NAME = replace(values.TEXT, accepts="a host name", read=_read_host)


@dataclass(frozen=True, slots=True)
class PodSelection:
    """Pods in `namespace` ("": the namespace of this pod) that match `selector` and serve at `port` of their addresses;
    by https if `tls_server_name` is set, which is the name in their certificates."""

    selector: Annotated[str, _SELECTOR]
    port: Annotated[int, values.integer(lowest=1, highest=65535)]
    namespace: Annotated[str, _NAMESPACE_NAME] = ""
    tls_server_name: Annotated[str, _HOST_NAME] = ""
