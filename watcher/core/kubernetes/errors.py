"""Errors of requests to the Kubernetes API, with hints for the operator.

Failures fall into three groups: transient failures are retried, refusals require a change by the operator, and expired
versions (which the server no longer has) require a new list. Kubernetes reports the failure in a Status object, a proxy
in between in a web page; both are converted here into one of the errors below.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from watcher.core.messages import hide_secrets


class KubeError(Exception):
    """A request to the API failed. `hint` is advice for the operator, `status` the HTTP status if there was a response,
    `causes` the reasons that the response gave ("DisruptionBudget"), `retry_after` the seconds that the server asks the
    client to wait. Never contains a secret."""

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

    def with_server(self, server: str, *, private: Iterable[str] = ()) -> Self:
        """Return a copy with the server's address before its message and without the secrets in `private`: a proxy in
        front of the API may repeat the request in its response."""
        message = hide_secrets(str(self), private)
        return type(self)(
            f"{server}: {message}",
            hint=self.hint,
            status=self.status,
            causes=self.causes,
            retry_after=self.retry_after,
        )


class KubeUnreachable(KubeError):
    """No connection, no response in time, or a transient failure status; worth a retry."""


class KubeMalformed(KubeError):
    """The response does not come from a Kubernetes API."""


class KubeRefused(KubeError):
    """The server refused the request, or the configuration does not allow sending it; a retry does not help."""


class KubeUnauthorized(KubeRefused):
    """401: the credentials are unknown to the server."""


class KubeForbidden(KubeRefused):
    """403: the account lacks the permission."""


class KubeNotFound(KubeRefused):
    """404: the object does not exist."""


class KubeNoApi(KubeNotFound):
    """404 for the resource itself, not for an object: the CustomResourceDefinition, or the API service that serves it,
    is not installed."""


class KubeConflict(KubeRefused):
    """409: another writer changed the object in the meantime. Read it again."""


class KubeGone(KubeError):
    """410: the server no longer stores the requested version or page. List again."""
