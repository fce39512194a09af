"""The copy of the cluster's objects through restarts of the API server, compaction, and expired credentials. More tests
of it are in tests/real/test_kube_apiserver.py."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.real.control_plane.objects import make_node
from tests.real.kube import ISSUER, ApiServer
from tests.real.test_kube_apiserver import QUICK, SECONDS, asked, watched
from tests.waiting import eventually
from watcher.core.kubernetes.errors import KubeGone, KubeUnauthorized
from watcher.core.kubernetes.objects import NODES
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.informer import Informer

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
READER = {"kind": "ClusterRole", "name": "view-nodes", "apiGroup": "rbac.authorization.k8s.io"}
LEEWAY_S = 60
"""Seconds for which the API server accepts a token after its expiry."""
READING = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}]


def names(apiserver: ApiServer) -> set[str]:
    """Return the nodes that the API server has."""
    return {each["metadata"]["name"] for each in apiserver.ask("GET", "/api/v1/nodes").json()["items"]}


async def wait_until_true(apiserver: ApiServer, informer: Informer[Any]) -> None:
    """Wait until the copy has the nodes of the API server and no error."""
    expected = await asyncio.to_thread(names, apiserver)

    def is_true() -> bool:
        return expected == set(informer.objects) and informer.error is None

    await eventually(is_true, what="the copy to be true", timeout=SECONDS)


def remove_node(apiserver: ApiServer, name: str) -> None:
    """Delete a node through the API."""
    assert apiserver.ask("DELETE", f"/api/v1/nodes/{name}").ok


def test_the_copy_is_true_after_a_restart(apiserver: ApiServer) -> None:
    """A node is created and another is removed before the informer is connected again. A server that is stopped by
    SIGTERM would keep the watch open for 60 s."""
    old, new, kept = (f"restart-{each}" for each in ("old", "new", "kept"))
    for name in (old, kept):
        make_node(apiserver, name)

    async def check(informer: Informer[Any]) -> None:
        await informer.wait()
        assert {old, kept} <= set(informer.objects)
        await asyncio.to_thread(apiserver.kill)
        await eventually(lambda: informer.error, what="the end to be noticed", timeout=SECONDS)
        await asyncio.to_thread(apiserver.start)
        await asyncio.to_thread(make_node, apiserver, new)
        await asyncio.to_thread(remove_node, apiserver, old)
        await wait_until_true(apiserver, informer)
        assert {new, kept} == {name for name in informer.objects if name.startswith("restart")}

    watched(apiserver, NODES, check)


def test_a_compaction_does_not_affect_an_open_watch(apiserver: ApiServer) -> None:
    """Its events continue, although etcd no longer has the version at which it began."""
    make_node(apiserver, "compacted-1")

    async def check(informer: Informer[Any]) -> None:
        await informer.wait()
        for number in range(2, 5):
            await asyncio.to_thread(make_node, apiserver, f"compacted-{number}")
            await asyncio.to_thread(apiserver.etcd.compact)
            await asyncio.to_thread(remove_node, apiserver, f"compacted-{number - 1}")
            await wait_until_true(apiserver, informer)
        assert {"compacted-4"} == {name for name in informer.objects if name.startswith("compacted")}

    watched(apiserver, NODES, check)


def test_a_version_that_is_too_old_is_gone(apiserver: ApiServer) -> None:
    """410 as an event of an accepted watch, or as the response."""

    async def check(client: KubeClient) -> None:
        apiserver.etcd.compact()
        async for event in client.watch(NODES, since="2", seconds=5):
            assert event.type == "OPENED"

    with pytest.raises(KubeGone, match="too old resource version"):
        asked(apiserver, check)


# --- expired tokens --------------------------------------------------------------------------------------------------


def sign_token(apiserver: ApiServer, account: dict[str, Any], *, seconds: float) -> str:
    """Return a ServiceAccount token for a shorter time than the 600 s that the TokenRequest API permits."""
    metadata, now = account["metadata"], int(time.time())
    subject = {"name": metadata["name"], "uid": metadata["uid"]}
    claims = {
        "iss": ISSUER,
        "aud": [ISSUER],
        "sub": f"system:serviceaccount:{metadata['namespace']}:{metadata['name']}",
        "iat": now,
        "nbf": now,
        "exp": now + int(seconds),
        "kubernetes.io": {"namespace": metadata["namespace"], "serviceaccount": subject},
    }
    signed = ".".join(_base64(json.dumps(each).encode()) for each in ({"alg": "RS256", "typ": "JWT"}, claims))
    key = serialization.load_pem_private_key((apiserver.directory / "accounts.key").read_bytes(), password=None)
    assert isinstance(key, rsa.RSAPrivateKey)
    return f"{signed}.{_base64(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def test_an_expired_token_is_reported_until_the_file_has_a_new_one(apiserver: ApiServer, tmp_path: Path) -> None:
    """As of a pod whose projected token is not renewed. The watch that is open when the token expires continues; the
    next one is refused."""
    account = apiserver.make(ACCOUNTS, metadata={"name": "reader"})
    roles = BINDINGS.replace("bindings", "s")
    apiserver.make(roles, metadata={"name": READER["name"]}, rules=READING)
    subjects = [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}]
    apiserver.make(BINDINGS, metadata={"name": "reader"}, roleRef=READER, subjects=subjects)
    token = tmp_path / "token"
    token.write_text(sign_token(apiserver, account, seconds=3 - LEEWAY_S))

    async def check(client: KubeClient) -> None:
        informer = Informer(client, NODES, delays=QUICK, watch_seconds=3)
        await informer.start()
        try:
            await informer.wait()
            await eventually(lambda: informer.error, what="the token to expire", timeout=SECONDS)
            assert isinstance(informer.error, KubeUnauthorized)
            assert informer.error.hint
            await asyncio.to_thread(make_node, apiserver, "unseen")
            token.write_text(sign_token(apiserver, account, seconds=600))
            await wait_until_true(apiserver, informer)
            assert "unseen" in informer.objects
        finally:
            await informer.close()

    asked(apiserver, check, tokenFile=str(token))
