"""Marks on 50 nodes of a real API server, with the rights and the policy of the chart: they come, and go at a stop, on
stale data, and after the Lease is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

from load_watcher.commands.marks import marks
from scorers.marks import writer
from scorers.marks.annotation import ANNOTATION_KEY
from scorers.marks.degrees import KEYS
from scorers.marks.module import MarksService
from tests.deploy.rendering import charted
from tests.deploy.test_manifests import MARKING
from tests.real.control_plane.manifests import apply_all, delete_all
from tests.real.control_plane.objects import MERGE
from tests.real.control_plane.rights import RBAC, granted, refused, wait_until_used
from tests.real.kube import ApiServer
from tests.scorers.marks.test_module import FOREIGN, Host
from watcher.platform.kube.leases import RENEW_EVERY_S
from watcher.platform.kube.settings import KubernetesSettings, MarksSettings

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

ACCOUNT = "load-watcher/load-watcher"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{writer.MARKS_LEASE}"
NODES = "/api/v1/nodes"
LOADS = {f"mark-{number:02}": 90.0 if number < 5 else 30.0 for number in range(50)}
SECONDS = 90.0


@pytest.fixture
def account(apiserver: ApiServer, tmp_path: Path) -> Iterator[Path]:
    """50 nodes, of which five are hot, and a kubeconfig with the rights and under the policy of the chart. The Lease is
    in the namespace default, because the test runs outside of a pod."""
    for name in LOADS:
        apiserver.make(NODES, metadata={"name": name}, spec={"taints": [FOREIGN]})
    apiserver.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "load-watcher"}})  # 409 if it exists
    rendered = [each for each in charted({**MARKING, "nodeRestriction": True}) if each["kind"] != "Job"]
    apply_all(apiserver, [each for each in rendered if is_access(each)])
    elsewhere = json.loads(json.dumps([each for each in rendered if each["kind"] in ("Role", "RoleBinding")]))
    for each in elsewhere:
        each["metadata"]["namespace"] = "default"
    apply_all(apiserver, elsewhere)
    yield apiserver.kubeconfig(tmp_path / "account", token=apiserver.account_token(ACCOUNT))
    delete_all(apiserver, [*(each for each in rendered if is_access(each)), *elsewhere])
    for name in LOADS:
        apiserver.ask("DELETE", f"{NODES}/{name}")
    apiserver.ask("DELETE", LEASE)


def is_access(manifest: dict[str, Any]) -> bool:
    kind = manifest["kind"]
    return kind == "ServiceAccount" or kind.startswith("ValidatingAdmissionPolicy") or manifest["apiVersion"] == RBAC


def marked(api: ApiServer) -> tuple[set[str], set[str]]:
    """The tainted nodes, and those with a score. The taint of another writer must be on each node."""
    nodes = api.ask("GET", NODES).json()["items"]
    assert all(FOREIGN in each["spec"]["taints"] for each in nodes)
    tainted = {each["metadata"]["name"] for each in nodes if any(t["key"] in KEYS for t in each["spec"]["taints"])}
    return tainted, {
        each["metadata"]["name"] for each in nodes if ANNOTATION_KEY in each["metadata"].get("annotations", {})
    }


def with_marks(
    api: ApiServer, kubeconfig: Path, story: Callable[[Host, MarksService], Awaitable[None]], **options: Any
) -> None:
    host = Host()
    host.of = (KubernetesSettings(kubeconfig=kubeconfig), MarksSettings(taints=True, annotation=True, pressure=True))
    host.serve(LOADS, tag="hot")

    async def run() -> None:
        service = MarksService(host, step=0.02, renew_every=options.get("renew_every", 0.2))

        async def all_marked() -> None:
            host.skip(1.0)  # ten writes per second
            assert (await asyncio.to_thread(marked, api)) == ({f"mark-{n:02}" for n in range(5)}, set(LOADS))

        async with service.life(web.Application()):
            await until(all_marked, what="the marks of 50 nodes")
            await story(host, service)

    asyncio.run(run())


async def until(check: Callable[[], Awaitable[None]], *, what: str) -> None:
    """Repeat an asynchronous check until it raises no AssertionError."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await check()
            except AssertionError:
                await asyncio.sleep(0.1)


def test_a_stop_removes_all_marks_with_the_rights_of_the_chart(apiserver: ApiServer, account: Path) -> None:
    before = len(apiserver.audited(ACCOUNT))

    async def story(host: Host, _service: MarksService) -> None:
        host.skip(RENEW_EVERY_S)
        rights = [each for each in granted(charted(MARKING), ACCOUNT) if each.group not in ("metrics.k8s.io",)]
        used = [each for each in rights if each.resource != "leases"]  # the Lease is in another namespace here
        await asyncio.to_thread(wait_until_used, apiserver, used, ACCOUNT, since=before)

    with_marks(apiserver, account, story)
    assert marked(apiserver) == (set(), set())
    assert refused(apiserver, ACCOUNT, since=before) == []


def test_stale_data_remove_all_marks(apiserver: ApiServer, account: Path) -> None:
    async def story(host: Host, _service: MarksService) -> None:
        host.clock += 301.0

        async def gone() -> None:
            host.clock += 1.0
            assert await asyncio.to_thread(marked, apiserver) == (set(), set())

        await until(gone, what="the removal")

    with_marks(apiserver, account, story)


def test_a_replica_that_loses_the_lease_leaves_the_marks_to_the_holder(apiserver: ApiServer, account: Path) -> None:
    """It removes none at its stop; the command then removes all."""

    async def story(_host: Host, service: MarksService) -> None:
        spec = {"holderIdentity": "another", "leaseDurationSeconds": 3600, "renewTime": "2100-01-01T00:00:00.000000Z"}
        assert apiserver.ask("PATCH", LEASE, {"spec": spec}, headers=MERGE).ok

        async def lost() -> None:
            _host.skip(1.0)
            assert service.writer is not None
            assert not service.writer.holds_lease

        await until(lost, what="the loss of the Lease")

    with_marks(apiserver, account, story)
    tainted, scored = marked(apiserver)
    assert (len(tainted), len(scored)) == (5, 50)
    spec = {"holderIdentity": "", "leaseDurationSeconds": 1}
    assert apiserver.ask("PATCH", LEASE, {"spec": spec}, headers=MERGE).ok
    result = CliRunner().invoke(marks, ["remove", "--set", f"kubernetes.kubeconfig={account}", "-o", "json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"removed": sorted(LOADS)}
    assert marked(apiserver) == (set(), set())
