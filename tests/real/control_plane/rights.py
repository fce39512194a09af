"""Comparing the rights that manifests grant with the requests in the audit log of the API server."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.deploy.rendering import Manifest
from tests.real.kube import ApiServer, AuditedRequest
from tests.waiting import wait_for

RBAC = "rbac.authorization.k8s.io/v1"


@dataclass(frozen=True, order=True)
class Right:
    """One verb on one resource. An empty `namespace` or `name` means any."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def covers(self, request: AuditedRequest) -> bool:
        """Whether the request needs this right."""
        exact = (self.verb, self.group, self.resource) == (request.verb, request.group, request.resource)
        return exact and self.namespace in ("", request.namespace) and self.name in ("", request.name)


def granted(rendered: Iterable[Manifest], account: str) -> set[Right]:
    """Return the rights that bindings in the manifests grant to a ServiceAccount, NAMESPACE/NAME."""
    found = list(rendered)
    namespace, _, name = account.partition("/")
    rights: set[Right] = set()
    for binding in found:
        subjects = [(each.get("namespace"), each["name"]) for each in binding.get("subjects", [])]
        if (namespace, name) in subjects:
            where = binding["metadata"].get("namespace", "")
            rights |= _rights_of(_role(found, binding), namespace=where)
    return rights


def _role(found: list[Manifest], binding: Manifest) -> Manifest:
    reference, where = binding["roleRef"], binding["metadata"].get("namespace")
    (role,) = (
        each
        for each in found
        if (each["kind"], each["metadata"]["name"]) == (reference["kind"], reference["name"])
        and each["metadata"].get("namespace") == where
    )
    return role


def _rights_of(role: Manifest, *, namespace: str) -> set[Right]:
    return {
        Right(verb, group, resource, namespace, name)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }


def wait_until_used(api: ApiServer, rights: Iterable[Right], account: str, *, since: int = 0) -> None:
    """Wait until requests of a ServiceAccount, from the index `since` in its audit log, have needed each of the rights.
    A right that stays unused fails the test."""

    def used() -> bool:
        requests = [each for each in api.audited(account)[since:] if each.allowed]
        unused = sorted(right for right in rights if not any(right.covers(each) for each in requests))
        assert not unused, f"unused: {unused}"
        return True

    wait_for(used, what="each granted right to be used", ignoring=(AssertionError,))


def refused(api: ApiServer, account: str, *, since: int = 0) -> list[AuditedRequest]:
    """Return the requests of a ServiceAccount, from the index `since`, that RBAC or an admission policy forbade."""
    return [each for each in api.audited(account)[since:] if not each.allowed or each.code == 403]
