"""Credentials for the API: in a cluster and by kubeconfig, over real TLS, and the errors of invalid ones."""

import asyncio
import base64
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.fakes.kube import FakeKube
from watcher.core.kubernetes.errors import KubeError, KubeRefused, KubeUnauthorized
from watcher.core.kubernetes.objects import NODES
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess, find_access

SECRET = "s3cret-token"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """The authority of the certificates of the API and of clients."""
    return trustme.CA()


def server_tls(authority: trustme.CA, *, name: str = "127.0.0.1", wants_client: bool = False) -> ssl.SSLContext:
    """The TLS context of the API."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    if wants_client:
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
    return context


def b64(blob: trustme.Blob) -> str:
    """PEM as in a kubeconfig."""
    return base64.b64encode(blob.bytes()).decode()


def listed(access: Callable[[], KubeAccess]) -> int:
    """The number of nodes that a client with these credentials lists."""

    async def inside() -> int:
        client = KubeClient(access, timeout=5.0)
        try:
            return len((await client.list(NODES)).items)
        finally:
            await client.close()

    return asyncio.run(inside())


def by_kubeconfig(path: Path) -> Callable[[], KubeAccess]:
    """The access of a kubeconfig, independent of the environment."""
    return lambda: find_access(kubeconfig=path, environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


def edited(path: Path, *, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None) -> Path:
    """A kubeconfig with another user, and changes of its cluster."""
    config = json.loads(path.read_text())
    if user is not None:
        config["users"][0]["user"] = user
    config["clusters"][0]["cluster"].update(cluster or {})
    path.write_text(json.dumps(config))
    return path


def test_in_a_cluster_the_service_account_is_used(authority: trustme.CA, tmp_path: Path):
    """Its token and its authority, at the address in the environment."""
    (tmp_path / "token").write_text(f"{SECRET}\n")
    (tmp_path / "ca.crt").write_bytes(authority.cert_pem.bytes())
    with FakeKube(token=SECRET, tls=server_tls(authority)) as server:
        server.node("a")
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
        assert 1 == listed(lambda: find_access(kubeconfig=None, environ=environ, service_account=tmp_path))


def test_an_ipv6_address_is_put_in_brackets(authority: trustme.CA, tmp_path: Path):
    """The default port is 443."""
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "ca.crt").write_bytes(authority.cert_pem.bytes())
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1"}
    access = find_access(kubeconfig=None, environ=environ, service_account=tmp_path)
    assert "https://[fd00::1]:443" == access.server
    assert SECRET not in repr(access)


@pytest.mark.parametrize("inline", [True, False], ids=["data", "files"])
def test_a_client_certificate_authenticates(authority: trustme.CA, tmp_path: Path, inline: bool):
    """In the kubeconfig, or in files with paths relative to it."""
    client = authority.issue_cert("me")
    pems = {
        "client-certificate": client.cert_chain_pems[0],
        "client-key": client.private_key_pem,
        "certificate-authority": authority.cert_pem,
    }
    for name, blob in pems.items():
        blob.write_to_path(str(tmp_path / f"{name}.pem"))
    entries = {f"{n}-data": b64(blob) for n, blob in pems.items()} if inline else {n: f"{n}.pem" for n in pems}
    trust = {name: entry for name, entry in entries.items() if "authority" in name}
    user = {name: entry for name, entry in entries.items() if "authority" not in name}
    with FakeKube(token="", tls=server_tls(authority, wants_client=True)) as server:
        server.node("a")
        path = edited(server.kubeconfig(tmp_path / "config"), user=user, cluster=trust)
        assert 1 == listed(by_kubeconfig(path))


def test_the_server_may_have_another_name(authority: trustme.CA, tmp_path: Path):
    """tls-server-name. Without it, the certificate does not match the address."""
    trust = {"certificate-authority-data": b64(authority.cert_pem)}
    with FakeKube(tls=server_tls(authority, name="kubernetes.default")) as server:
        server.node("a")
        path = server.kubeconfig(tmp_path / "config", **trust)
        with pytest.raises(KubeRefused, match="is not trusted"):
            listed(by_kubeconfig(path))
        assert 1 == listed(by_kubeconfig(edited(path, cluster={"tls-server-name": "kubernetes.default"})))


def test_a_certificate_of_another_authority_is_not_trusted(authority: trustme.CA, tmp_path: Path):
    """Unless the kubeconfig disables the check."""
    with FakeKube(tls=server_tls(authority)) as server:
        server.node("a")
        other = {"certificate-authority-data": b64(trustme.CA().cert_pem)}
        path = server.kubeconfig(tmp_path / "config", **other)
        with pytest.raises(KubeRefused, match="the server certificate is not trusted"):
            listed(by_kubeconfig(path))
        anything: dict[str, Any] = {"insecure-skip-tls-verify": True}
        assert 1 == listed(by_kubeconfig(server.kubeconfig(path, **anything)))


def test_a_server_without_tls_is_an_error(tmp_path: Path):
    """https to a plain port."""
    with FakeKube() as server:
        path = edited(server.kubeconfig(tmp_path / "config"), cluster={"server": f"https://127.0.0.1:{server.port}"})
        with pytest.raises(KubeRefused, match="does not support TLS"):
            listed(by_kubeconfig(path))


def test_a_token_file_takes_precedence_over_a_token(tmp_path: Path):
    """As in kubectl."""
    (tmp_path / "token").write_text(SECRET)
    with FakeKube(token=SECRET) as server:
        path = edited(server.kubeconfig(tmp_path / "config"), user={"token": "old", "tokenFile": "token"})
        assert 0 == listed(by_kubeconfig(path))


async def test_after_a_refusal_the_kubeconfig_is_read_again(tmp_path: Path):
    """Renewed credentials are used without a restart."""
    with FakeKube(token="new") as server:
        path = server.kubeconfig(tmp_path / "config", token="old")

        async def check() -> None:
            client = KubeClient(by_kubeconfig(path), timeout=5.0)
            try:
                with pytest.raises(KubeUnauthorized, match="401"):
                    await client.list(NODES)
                server.kubeconfig(path)
                await client.list(NODES)
            finally:
                await client.close()

        await check()


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "cluster", "words"),
    [
        ({"exec": "aws"}, {}, "exec must be a mapping"),
        ({"auth-provider": {"name": "gcp"}}, {}, "its auth provider is not supported"),
        ({"username": "me", "password": SECRET}, {}, "a password is not supported"),
        ({"as": "admin", "token": SECRET}, {}, "impersonation is not supported"),
        ({}, {"proxy-url": "http://proxy"}, "proxy-url, which is not supported"),
        ({"token": 7}, {}, "token must be a string"),
        ({"token": f"{SECRET}\nX-More: y"}, {}, "is invalid: it has characters"),
        ({"tokenFile": "nowhere"}, {}, "the token cannot be read from"),
        ({"tokenFile": "empty"}, {}, "is empty"),
        ({}, {"server": "ftp://x"}, "is not an address like https://10.0.0.1:6443"),
        ({}, {"server": f"https://me:{SECRET}@x"}, "is not an address like"),
        ({}, {"server": ""}, "is not an address like"),
        ({}, {"server": "https://x", "certificate-authority": "nowhere"}, "certificate-authority cannot be read from"),
        ({}, {"server": "https://x", "certificate-authority": "empty"}, "is not a PEM file"),
        ({}, {"server": "https://x", "certificate-authority-data": "%"}, "is not a PEM file in base64"),
        ({"client-certificate-data": "eA=="}, {"server": "https://x"}, "client-certificate and client-key are not PEM"),
    ],
)
def test_unusable_credentials_are_an_error_that_names_them(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], words: str
):
    """No anonymous request is sent, which would look like a missing right; no secret is shown."""
    (tmp_path / "empty").write_text("")
    with FakeKube() as server:
        path = edited(server.kubeconfig(tmp_path / "config"), user=user, cluster=cluster)
        with pytest.raises(KubeRefused) as caught:
            listed(by_kubeconfig(path))

    assert words in str(caught.value)
    assert SECRET not in f"{caught.value} {caught.value.hint}"
    assert [] == server.asked


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not a kubeconfig"),
        ("[]", "is not a kubeconfig"),
        (f"token: {SECRET}: x: [", "is not valid YAML"),
        ("clusters: []", "does not name a context"),
        ("current-context: a\ncontexts: []", "has no context named a"),
        ("current-context: a\ncontexts: [{name: a, context: {cluster: c}}]", "has no cluster named c"),
        ("current-context: a\ncontexts: [{name: a}]", "does not name a cluster"),
        ("clusters: [{name: [1]}]", "is not a kubeconfig"),
        ("[" * 30_000, "is not valid YAML"),  # libyaml would crash the process
    ],
    ids=range(9),
)
def test_an_invalid_kubeconfig_is_an_error(tmp_path: Path, content: str, words: str):
    """Without its content, which has secrets."""
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(KubeRefused) as caught:
        find_access(kubeconfig=path, environ={})

    assert words in str(caught.value)
    assert SECRET not in f"{caught.value} {caught.value.__cause__}"


def test_another_context_than_the_current_one_may_be_selected(tmp_path: Path):
    """With its own cluster and user; an unknown one is an error."""
    path = tmp_path / "config"
    path.write_text(
        """
        current-context: a
        contexts: [{name: a, context: {cluster: ca, user: ua}}, {name: b, context: {cluster: cb, user: ub}}]
        clusters: [{name: ca, cluster: {server: http://a:1}}, {name: cb, cluster: {server: http://b:2}}]
        users: [{name: ua, user: {token: for-a}}, {name: ub, user: {token: for-b}}]
        """
    )
    for context, server, token in ((None, "http://a:1", "for-a"), ("b", "http://b:2", "for-b")):
        access = find_access(kubeconfig=path, context=context, environ={})
        assert (server, token) == (access.server, access.token)
    with pytest.raises(KubeRefused, match="has no context named c") as refused:
        find_access(kubeconfig=path, context="c", environ={})
    assert "kubectl config view" in refused.value.hint


def test_without_a_kubeconfig_and_a_cluster_the_error_has_a_remedy(tmp_path: Path):
    """The Go service reported "no configuration has been provided"."""
    with pytest.raises(KubeRefused) as caught:
        find_access(kubeconfig=None, environ={})
    assert "KUBE_CONFIG" in caught.value.hint
    with pytest.raises(KubeError, match="No such file"):
        find_access(kubeconfig=tmp_path / "nowhere", environ={})


def test_a_pod_without_a_service_account_is_an_error(tmp_path: Path):
    """automountServiceAccountToken: false."""
    with pytest.raises(KubeRefused, match="no service account") as caught:
        find_access(kubeconfig=None, environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, service_account=tmp_path)
    assert "automountServiceAccountToken" in caught.value.hint
