"""From an error response of the Kubernetes API to an error with a hint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    shown,
)

if TYPE_CHECKING:
    from watcher.core.kubernetes.wire import Resource

PASSING = (429, 500, 502, 503, 504)
PAGE_NOT_FOUND = "404 page not found"
"""What the API server says, without a Status, where it has no such group, version or resource."""
LONGEST_WAIT_S = 3600.0
"""What is more is taken for this."""


class Cause(msgspec.Struct, frozen=True):
    """One reason for a failure."""

    reason: str = ""


class Details(msgspec.Struct, frozen=True, rename="camel"):
    """What a failure is about: the object's name, where it is about one."""

    name: str = ""
    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: int | None = None


class Status(msgspec.Struct, frozen=True):
    """Kubernetes' own description of a failure, as the body of an answer and in a watch."""

    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: Details | None = None


def read_status(body: bytes) -> Status:
    """The Status in a body; where there is none, its first words as the message."""
    try:
        status = msgspec.json.decode(body, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Status(message=shown(body[:2048].decode(errors="replace")) or "it says no more")
    return msgspec.structs.replace(
        status, message=shown(status.message) or "it says no more", reason=shown(status.reason)
    )


def error_of(
    code: int,
    status: Status,
    *,
    verb: str,
    resource: Resource[Any],
    subresource: str = "",
    namespace: str = "",
    retry_after: str | None = None,
) -> KubeError:
    """The error for an answer with this HTTP status (or with this code in a watch) to `verb` on `resource`, on that of
    `namespace` if one was asked. `retry_after` is the header of that name."""
    what = f"{resource.plural}/{subresource}" if subresource else resource.plural
    full = f"{what}.{resource.group}" if resource.group else what
    said = f"it will not {verb} {full} ({code} {status.reason}".rstrip() + f"): {status.message}"
    details = status.details or Details()
    rule = missing_rule(verb, what, group=resource.group, namespace=namespace)
    kind, hint = _kind_and_hint(code, status, details, rule=rule, resource=resource)
    return kind(
        said,
        hint=hint,
        status=code,
        causes=tuple(shown(cause.reason) for cause in details.causes or ()),
        retry_after=_seconds(retry_after) or _seconds(details.retry_after_seconds),
    )


def _kind_and_hint(
    code: int, status: Status, details: Details, *, rule: str, resource: Resource[Any]
) -> tuple[type[KubeError], str]:
    if code == 401:
        hint = "Its credentials are not known here: is the token or the client certificate expired, or of another one?"
        return KubeUnauthorized, hint
    if code == 403:
        return KubeForbidden, rule
    if code == 404 and not details.name:
        kubernetes = status.kind == "Status" or status.message == PAGE_NOT_FOUND  # and not something before it
        return KubeNoApi if kubernetes else KubeNotFound, f"Does this cluster have {resource.group_version}?"
    kinds = {404: KubeNotFound, 409: KubeConflict, 410: KubeGone}
    return kinds.get(code, KubeUnreachable if code in PASSING else KubeRefused), ""


def _seconds(text: str | int | None) -> float | None:
    """How long to wait, None where that is not said in seconds."""
    try:
        seconds = float(text or 0)
    except ValueError:  # HTTP would allow a date; Kubernetes never writes one
        return None
    return min(seconds, LONGEST_WAIT_S) if seconds > 0 else None


def missing_rule(verb: str, what: str, *, group: str, namespace: str = "") -> str:
    """What to do about a right that this account lacks: the rule for its ClusterRole, or for its Role in `namespace`.
    `what` is a resource, with its subresource if it is one."""
    rule = f'{{apiGroups: ["{group}"], resources: ["{what}"], verbs: ["{verb}"]}}'
    full = f"{what}.{group}" if group else what
    where, role = (f" in the namespace {namespace}", "a Role there") if namespace else ("", "a ClusterRole")
    return f"The account lacks the verb {verb} on {full}{where}: bind it {role} with the rule {rule}."
