"""deploy/flowcontrol on a real API server: requests of the watcher and of the agents get their own priority level."""

from __future__ import annotations

import pytest

from tests.deploy.rendering import Manifest, kustomized
from tests.real.kube import ApiServer
from tests.real.parts import REPOSITORY
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

GROUP = "/apis/flowcontrol.apiserver.k8s.io/v1"
PLURALS = {"FlowSchema": "flowschemas", "PriorityLevelConfiguration": "prioritylevelconfigurations"}
HEADERS = {
    "FlowSchema": "X-Kubernetes-PF-FlowSchema-UID",
    "PriorityLevelConfiguration": "X-Kubernetes-PF-PriorityLevel-UID",
}
ACCOUNTS = {"load-watcher": "load-watcher", "load-watcher-agent": "load-watcher-agent"}


@pytest.fixture(scope="module")
def installed(apiserver: ApiServer) -> dict[tuple[str, str], str]:
    """The objects, created with unknown fields refused; their uids by kind and name."""
    uids = {}
    for manifest in kustomized(REPOSITORY / "deploy/flowcontrol"):
        made: Manifest = apiserver.make(f"{GROUP}/{PLURALS[manifest['kind']]}?fieldValidation=Strict", **manifest)
        uids[manifest["kind"], made["metadata"]["name"]] = made["metadata"]["uid"]
    return uids


def levels(apiserver: ApiServer, user: str) -> dict[str, str]:
    """The uids of the schema and the priority level of a request of this user. Any request is classified, also one that
    is then forbidden."""
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{user.split(':')[2]}", "system:authenticated"]
    headers = {"Impersonate-User": user, "Impersonate-Group": ",".join(groups)}
    answer = apiserver.ask("GET", "/api/v1/nodes", headers=headers)
    return {kind: answer.headers[header] for kind, header in HEADERS.items()}


@pytest.mark.parametrize("name", ACCOUNTS)
def test_an_account_has_its_own_level(apiserver: ApiServer, installed: dict[tuple[str, str], str], name: str) -> None:
    """The header of each response names the schema."""
    user = f"system:serviceaccount:{ACCOUNTS[name]}:{name}"
    own = {kind: installed[kind, name] for kind in HEADERS}
    wait_for(lambda: levels(apiserver, user) == own, what=f"the schema {name} to apply")


def test_other_accounts_keep_their_levels(apiserver: ApiServer, installed: dict[tuple[str, str], str]) -> None:
    found = levels(apiserver, "system:serviceaccount:load-watcher:default")
    assert not set(found.values()) & set(installed.values())


def test_the_objects_are_valid(apiserver: ApiServer, installed: dict[tuple[str, str], str]) -> None:
    """A schema that names a missing level is dangling."""
    names = [name for kind, name in installed if kind == "FlowSchema"]

    def dangling() -> set[str]:
        schemas = [apiserver.ask("GET", f"{GROUP}/flowschemas/{name}").json() for name in names]
        conditions = [one for each in schemas for one in each.get("status", {}).get("conditions", [])]
        return {each["status"] for each in conditions if each["type"] == "Dangling"}

    wait_for(lambda: dangling() == {"False"}, what="the schemas to be complete")
