"""From an error response of the Kubernetes API to an error with a hint."""

from __future__ import annotations

from typing import Any

import msgspec

from watcher.core.kubernetes.errors import (
    KubeConflict,
    KubeError,
    KubeForbidden,
    KubeGone,
    KubeNoApi,
    KubeNotFound,
    KubeRefused,
    KubeUnauthorized,
    KubeUnreachable,
)
from watcher.core.kubernetes.wire import Resource
from watcher.core.messages import printable
from watcher.decoding.json_text import decode_json

PASSING = (429, 500, 502, 503, 504)
PAGE_NOT_FOUND = "404 page not found"
"""The API server's response body, without a Status, for an unknown group, version or resource."""
LONGEST_WAIT_S = 3600.0
"""Upper limit of `retry_after`, in seconds."""


class Cause(msgspec.Struct, frozen=True):
    """One reason for a failure, such as "DisruptionBudget"."""

    reason: str = ""


class Details(msgspec.Struct, frozen=True, rename="camel"):
    """Details of a failure: the name of the object concerned, "" if none, the causes, and the wait in seconds."""

    name: str = ""
    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: int | None = None


class ApiStatus(msgspec.Struct, frozen=True):
    """Kubernetes' description of a failure, in a response body or in a watch."""

    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: Details | None = None


def read_status(body: bytes) -> ApiStatus:
    """The Status in a response body; if there is none, a Status with the beginning of the body as its message."""
    try:
        status = decode_json(body, type=ApiStatus)
    except msgspec.DecodeError:
        return ApiStatus(message=printable(body[:2048].decode(errors="replace")) or "no details given")
    return msgspec.structs.replace(
        status, message=printable(status.message) or "no details given", reason=printable(status.reason)
    )


def error_of(
    code: int,
    status: ApiStatus,
    *,
    verb: str,
    resource: Resource[Any],
    subresource: str = "",
    namespace: str = "",
    retry_after: str | None = None,
) -> KubeError:
    """The error for a response with this HTTP status (or with this code in a watch) to `verb` on `resource`, limited to
    `namespace` if given. `retry_after` is the Retry-After header."""
    what = f"{resource.plural}/{subresource}" if subresource else resource.plural
    full = f"{what}.{resource.group}" if resource.group else what
    said = f"cannot {verb} {full} ({code} {status.reason}".rstrip() + f"): {status.message}"
    details = status.details or Details()
    rule = missing_rule(verb, what, group=resource.group, namespace=namespace)
    kind, hint = _kind_and_hint(code, status, details, rule=rule, resource=resource)
    return kind(
        said,
        hint=hint,
        status=code,
        causes=tuple(printable(cause.reason) for cause in details.causes or ()),
        retry_after=_seconds(retry_after) or _seconds(details.retry_after_seconds),
    )


def _kind_and_hint(
    code: int, status: ApiStatus, details: Details, *, rule: str, resource: Resource[Any]
) -> tuple[type[KubeError], str]:
    if code == 401:
        hint = "The server rejected the credentials: the token or client certificate expired or is for another cluster."
        return KubeUnauthorized, hint
    if code == 403:
        return KubeForbidden, rule
    if code == 404 and not details.name:
        kubernetes = status.kind == "Status" or status.message == PAGE_NOT_FOUND  # not a proxy in front of it
        return KubeNoApi if kubernetes else KubeNotFound, f"Check that this cluster serves {resource.group_version}."
    kinds = {404: KubeNotFound, 409: KubeConflict, 410: KubeGone}
    return kinds.get(code, KubeUnreachable if code in PASSING else KubeRefused), ""


def _seconds(text: str | int | None) -> float | None:
    """The seconds to wait, at most LONGEST_WAIT_S; None if not given in seconds."""
    try:
        seconds = float(text or 0)
    except ValueError:  # HTTP would allow a date; Kubernetes never writes one
        return None
    return min(seconds, LONGEST_WAIT_S) if seconds > 0 else None


def missing_rule(verb: str, what: str, *, group: str, namespace: str = "") -> str:
    """The advice for a missing permission: the rule to add to a ClusterRole, or to a Role in `namespace`. `what` is a
    resource, with its subresource if any."""
    rule = f'{{apiGroups: ["{group}"], resources: ["{what}"], verbs: ["{verb}"]}}'
    full = f"{what}.{group}" if group else what
    where, role = (f" in the namespace {namespace}", "a Role there") if namespace else ("", "a ClusterRole")
    return f"The account lacks the verb {verb} on {full}{where}: grant it {role} with the rule {rule}."
