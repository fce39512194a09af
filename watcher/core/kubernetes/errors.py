"""What went wrong between us and the Kubernetes API, in words that say what to do about it.

Three kinds of trouble want three different answers: what passes is tried again, what was refused is for the operator to
grant, and what is gone (a version that the server no longer has) is listed anew. Kubernetes says which in a Status
object; a proxy in between says it as a web page. Either becomes one of the errors below, once, here.

Pure: answers in, errors out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    pass

SHOWN_CHARACTERS = 300


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


def shown(text: str) -> str:
    """A foreign text as it may stand in an error: printable, on one line, cut."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * SHOWN_CHARACTERS]).split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…"
