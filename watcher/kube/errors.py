"""What went wrong between us and the Kubernetes API, in words that say what to do about it.

Three kinds of trouble want three different answers: what passes is tried again, what was refused is for the operator to
grant, and what is gone (a version that the server no longer has) is listed anew. Kubernetes says which in a Status
object; a proxy in between says it as a web page. Either becomes one of the errors below, once, here.

Pure: answers in, errors out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

import msgspec

if TYPE_CHECKING:
    from watcher.kube.shapes import Resource

SHOWN_CHARACTERS = 300
PASSING = (429, 500, 502, 503, 504)
PAGE_NOT_FOUND = "404 page not found"
"""What the API server says, without a Status, where it has no such group, version or resource."""
LONGEST_WAIT_S = 3600.0
"""What is more is taken for this."""


class KubeError(Exception):
    """The API did not do what was asked. `hint` says what the operator can do, `status` is the HTTP status where there
    was an answer, `causes` are the reasons that it gave for it ("DisruptionBudget"), `retry_after` the seconds that it
    wants us to wait. Never carries a secret."""

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        status: int | None = None,
        causes: tuple[str, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.status = status
        self.causes = causes
        self.retry_after = retry_after

    def told_by(self, server: str, *, private: Iterable[str] = ()) -> Self:
        """The same, with the server's address before its message, and without what is `private` in it: what stands
        before an API may answer with what it was asked."""
        message = str(self)
        for secret in private:
            message = message.replace(secret, "***")
        told = type(self)(
            f"{server}: {message}",
            hint=self.hint,
            status=self.status,
            causes=self.causes,
            retry_after=self.retry_after,
        )
        return told


class KubeUnreachable(KubeError):
    """No connection, no answer in time, or an answer of the kind that passes: worth another try."""


class KubeMalformed(KubeError):
    """It answered something that is not the Kubernetes API."""


class KubeRefused(KubeError):
    """It answered no, or we have nothing to ask it with; another try will not help."""


class KubeUnauthorized(KubeRefused):
    """401: it does not know who we are."""


class KubeForbidden(KubeRefused):
    """403: it knows, and we may not."""


class KubeNotFound(KubeRefused):
    """404: no such object."""


class KubeNoApi(KubeNotFound):
    """404, and it is not the object that is missing: the cluster does not know that kind of object. Its
    CustomResourceDefinition, or what serves it, is not installed."""


class KubeConflict(KubeRefused):
    """409: somebody else changed the object meanwhile. Read it again."""


class KubeGone(KubeError):
    """410: the version or the page asked for is older than what it keeps. List anew."""


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


def shown(text: str) -> str:
    """A foreign text as it may stand in an error: printable, on one line, cut."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * SHOWN_CHARACTERS]).split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…"


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
