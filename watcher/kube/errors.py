"""What went wrong between us and the Kubernetes API, in words that say what to do about it.

Three kinds of trouble want three different answers: what passes is tried again, what was refused is for the operator to
grant, and what is gone (a version that the server no longer has) is listed anew. Kubernetes says which in a Status
object; a proxy in between says it as a web page. Either becomes one of the errors below, once, here.

Pure: answers in, errors out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from watcher.kube.shapes import Resource

SHOWN_CHARACTERS = 300
PASSING = (429, 500, 502, 503, 504)


class KubeError(Exception):
    """The API did not do what was asked. `hint` says what the operator can do, `status` is the HTTP status where there
    was an answer. Never carries a secret."""

    def __init__(self, message: str, *, hint: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.status = status


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
    """404: no such object, or no such API."""


class KubeGone(KubeError):
    """410: the version or the page asked for is older than what it keeps. List anew."""


class Status(msgspec.Struct, frozen=True):
    """Kubernetes' own description of a failure, as the body of an answer and in a watch."""

    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0


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
    return Status(status.kind, shown(status.message) or "it says no more", shown(status.reason), status.code)


def error_of(code: int, status: Status, *, verb: str, resource: Resource[Any]) -> KubeError:
    """The error for an answer with this HTTP status (or with this code in a watch) to `verb` on `resource`."""
    said = f"it will not {verb} {resource.full_name} ({code} {status.reason}".rstrip() + f"): {status.message}"
    if code == 401:
        hint = "Its credentials are not known here: is the token or the client certificate expired, or of another one?"
        return KubeUnauthorized(said, hint=hint, status=code)
    if code == 403:
        return KubeForbidden(said, hint=_missing_rule(verb, resource), status=code)
    if code == 404:
        return KubeNotFound(said, hint=f"Does this cluster have {resource.group_version}?", status=code)
    if code == 410:
        return KubeGone(said, status=code)
    if code in PASSING:
        return KubeUnreachable(said, status=code)
    return KubeRefused(said, status=code)


def _missing_rule(verb: str, resource: Resource[Any]) -> str:
    """The rule that a ClusterRole of this account lacks."""
    rule = f'{{apiGroups: ["{resource.group}"], resources: ["{resource.plural}"], verbs: ["{verb}"]}}'
    return f"The account lacks the verb {verb} on {resource.full_name}: bind it a ClusterRole with the rule {rule}."
