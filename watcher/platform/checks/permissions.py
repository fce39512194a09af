"""Checks of permissions in the Kubernetes API, with a SelfSubjectAccessReview for each verb and resource."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from watcher.core.kubernetes.errors import KubeError
from watcher.core.kubernetes.wire import Resource
from watcher.platform.checks.results import CheckResult, fail, ok, warn
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.refusals import missing_rule


@dataclass(frozen=True, slots=True)
class Permission:
    """A permission that a process needs. `vital`: `purpose` fails without it; otherwise it works with limits.
    `or_subresource` is another subresource whose permission is enough; `granted_by` is the manifest that grants it."""

    verb: str
    resource: Resource[Any]
    purpose: str
    vital: bool = True
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    or_subresource: str = ""
    granted_by: str = ""

    @property
    def what(self) -> str:
        """The resource or subresource as in an RBAC rule: "pods", "pods/binding"."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    @property
    def shown(self) -> str:
        """The permission in the syntax of `kubectl auth can-i`."""
        return f"{self.verb} {self.what}" + (f".{self.resource.group}" if self.resource.group else "")


async def check_permissions(client: KubeClient, needed: Sequence[Permission]) -> list[CheckResult]:
    """One result for each purpose that lacks a permission, or one that names all granted permissions."""
    try:
        granted = [await _may(client, right) for right in needed]
    except KubeError as error:
        return [warn(f"cannot check the permissions of this account: {error}", error.hint or "try kubectl auth can-i")]
    refused: dict[str, list[Permission]] = {}
    for right, may in zip(needed, granted, strict=True):
        if not may:
            refused.setdefault(right.purpose, []).append(right)
    results = [_missing(purpose, missing) for purpose, missing in refused.items()]
    return results or [ok(f"this account may {', '.join(dict.fromkeys(right.shown for right in needed))}")]


async def _may(client: KubeClient, right: Permission) -> bool:
    subresources = filter(None, (right.or_subresource,))
    for subresource in (right.subresource, *subresources):
        of = {"subresource": subresource, "namespace": right.namespace, "name": right.name}
        if await client.is_allowed(right.verb, right.resource, **of):
            return True
    return False


def _missing(purpose: str, missing: Sequence[Permission]) -> CheckResult:
    """Return one result for all missing permissions of a purpose."""
    message = f"this account may not {', '.join(right.shown for right in missing)}; needed for {purpose}"
    rules = [
        missing_rule(right.verb, right.what, group=right.resource.group, namespace=right.namespace) for right in missing
    ]
    manifests = [f"{each} grants it." for each in dict.fromkeys(right.granted_by for right in missing) if each]
    return (fail if any(right.vital for right in missing) else warn)(message, " ".join([*rules, *manifests]))
