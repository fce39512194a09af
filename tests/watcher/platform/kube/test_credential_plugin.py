"""Credentials of programs and OIDC issuers: real programs, a real issuer over TLS, and failures."""

import asyncio
import base64
import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from tests.fakes.kube import FakeKube
from tests.watcher.platform.kube.test_credentials import b64, by_kubeconfig, edited, listed, server_tls
from watcher.core.kubernetes.errors import KubeRefused, KubeUnauthorized, KubeUnreachable
from watcher.core.kubernetes.objects import NODES
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credential_plugin import CredentialPlugin

API = "client.authentication.k8s.io/v1"


def program(directory: Path, script: str, **described: Any) -> dict[str, Any]:
    """The user of a kubeconfig with the credentials of a shell script beside it."""
    path = directory / "bring"
    path.write_text(f"#!/bin/sh\necho run >> '{directory}/runs'\n{script}\n")
    path.chmod(0o700)
    return {"exec": {"apiVersion": API, "command": "./bring", **described}}


def answer(directory: Path, **status: Any) -> str:
    """A script that prints these credentials."""
    credential = {"apiVersion": API, "kind": "ExecCredential", "status": status}
    (directory / "answer.json").write_text(json.dumps(credential))
    return f"cat '{directory}/answer.json'"


def runs(directory: Path) -> int:
    """The number of runs of the script."""
    return len((directory / "runs").read_text().splitlines())


# --- exec plug-ins ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_program_with_endless_output_is_ended_and_refused(tmp_path: Path):
    """Neither its output nor its error output fills the memory."""
    for script in ("exec yes", "exec yes >&2"):
        user = program(tmp_path, script)

        async def ask(described: dict[str, Any] = user) -> None:
            with pytest.raises(KubeRefused, match="the output is larger than 1 MiB"):
                await CredentialPlugin(described, path=tmp_path / "config").token()

        await ask()


async def test_the_token_of_a_program_is_used(tmp_path: Path):
    """With its arguments and environment; it runs once if the token has no end."""
    script = 'test "$1 $PROFILE" = "get-token prod" || exit 7; ' + answer(tmp_path, token="brought")
    user = program(tmp_path, script, args=["get-token"], env=[{"name": "PROFILE", "value": "prod"}])
    with FakeKube(token="brought") as server:
        path = edited(server.kubeconfig(tmp_path / "config"), user=user)

        async def ask_twice() -> None:
            client = KubeClient(by_kubeconfig(path), timeout=20.0)
            try:
                await client.list(NODES)
                await client.list(NODES)
            finally:
                await client.close()

        await ask_twice()
    assert 1 == runs(tmp_path)


@pytest.mark.parametrize(("end", "expected"), [("2020-01-01T00:00:00Z", 2), ("2999-01-01T00:00:00Z", 1)])
async def test_a_token_is_renewed_when_it_expires(tmp_path: Path, end: str, expected: int):
    """And not before."""
    plugin = CredentialPlugin(
        program(tmp_path, answer(tmp_path, token="t", expirationTimestamp=end)), path=tmp_path / "config", seconds=20
    )

    assert ["t", "t"] == [await plugin.token(), await plugin.token()]
    assert expected == runs(tmp_path)


async def test_after_a_refusal_the_program_runs_again(tmp_path: Path):
    """Its credentials may have been revoked."""
    user = program(tmp_path, answer(tmp_path, token="old"))
    with FakeKube(token="new") as server:
        path = edited(server.kubeconfig(tmp_path / "config"), user=user)

        async def check() -> None:
            client = KubeClient(by_kubeconfig(path), timeout=20.0)
            try:
                with pytest.raises(KubeUnauthorized):
                    await client.list(NODES)
                answer(tmp_path, token="new")
                await client.list(NODES)
            finally:
                await client.close()

        await check()
    assert 2 == runs(tmp_path)


def test_the_client_certificate_of_a_program_is_used(tmp_path: Path):
    """Instead of a token."""
    authority = trustme.CA()
    client = authority.issue_cert("me")
    pem = {
        "clientCertificateData": client.cert_chain_pems[0].bytes().decode(),
        "clientKeyData": client.private_key_pem.bytes().decode(),
    }
    with FakeKube(token="", tls=server_tls(authority, wants_client=True)) as server:
        trust = {"certificate-authority-data": b64(authority.cert_pem)}
        user = program(tmp_path, answer(tmp_path, **pem))
        assert 0 == listed(by_kubeconfig(edited(server.kubeconfig(tmp_path / "config"), user=user, cluster=trust)))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'no session' >&2; exit 3", "returned 3. no session"),
        ("echo s3cret", "the output is not an ExecCredential"),
        ('echo \'{"apiVersion": "x", "kind": "ExecCredential", "status": {"token": "s3cret"}}\'', "does not match"),
        (
            f'echo \'{{"apiVersion": "{API}", "kind": "x", "status": {{}}}}\'',
            "neither a token nor a client certificate",
        ),
        (
            f'echo \'{{"apiVersion": "{API}", "kind": "x", "status": {{"token": "s3cret\\\\n"}}}}\'',
            "is invalid: it has characters",
        ),
    ],
    ids=["exit code", "no JSON", "other version", "nothing", "no header"],
)
def test_a_program_without_credentials_is_an_error(tmp_path: Path, script: str, words: str):
    """With its error output, and without its output."""
    with FakeKube() as server:
        path = edited(server.kubeconfig(tmp_path / "config"), user=program(tmp_path, script))
        with pytest.raises(KubeRefused) as caught:
            listed(by_kubeconfig(path))
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_missing_program_is_an_error_with_the_installation_hint(tmp_path: Path):
    """Kubeconfigs may have one."""
    user = {"exec": {"apiVersion": API, "command": "no-such-program", "installHint": "Get it from the vendor."}}
    with FakeKube() as server, pytest.raises(KubeRefused, match="no-such-program was not found") as caught:
        listed(by_kubeconfig(edited(server.kubeconfig(tmp_path / "config"), user=user)))
    assert "Get it from the vendor." == caught.value.hint


@pytest.mark.slow
async def test_a_program_that_waits_for_a_login_is_started_once(tmp_path: Path):
    """Each start would open another browser; later callers get the result of the first run."""
    script = f"while test ! -e '{tmp_path}/go'; do sleep 0.05; done; " + answer(tmp_path, token="at last")
    plugin = CredentialPlugin(program(tmp_path, script), path=tmp_path / "config", seconds=0.2)

    for _ in range(2):
        with pytest.raises(KubeUnreachable, match=r"did not respond within 0\.2 s") as caught:
            await plugin.token()
        assert "run it once manually" in caught.value.hint
    (tmp_path / "go").touch()

    brought = ""
    async with asyncio.timeout(30):
        while not brought:
            with suppress(KubeUnreachable):  # after 0.2 s each
                brought = await plugin.token()
    assert "at last" == brought
    assert 1 == runs(tmp_path)


def test_without_the_extra_the_error_has_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Only such kubeconfigs need it."""
    monkeypatch.delitem(sys.modules, "watcher.platform.kube.credential_loader", raising=False)
    for name in [each for each in sys.modules if each.startswith("kubernetes_asyncio")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", None)
    with FakeKube() as server:
        path = edited(server.kubeconfig(tmp_path / "config"), user=program(tmp_path, answer(tmp_path, token="t")))
        with pytest.raises(KubeRefused, match="bring needs kubernetes-asyncio") as caught:
            listed(by_kubeconfig(path))
    assert "pip install '.[kube]' in a clone" in caught.value.hint


@pytest.mark.slow
def test_the_extra_is_imported_only_if_it_is_used():
    """The import takes half a second and 30 MB."""
    modules = "watcher.platform.kube.client, watcher.sources.metrics_server.provider"
    script = f"import sys, {modules}; print('kubernetes_asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, text=True, stdout=subprocess.PIPE)
    assert "False\n" == done.stdout


# --- OIDC ------------------------------------------------------------------------------------------------------------


def id_token(seconds: float) -> str:
    """A token that is valid for this time; its claims contain letters that base64 and base64url encode differently."""
    claims = json.dumps({"exp": time.time() + seconds, "name": "ÿ?~ÿ>ÿ"}, ensure_ascii=False).encode()
    return f"head.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.signature"


@dataclass
class Issuer:
    """An OIDC issuer over TLS that sends `answer` for each refresh."""

    authority: trustme.CA = field(default_factory=trustme.CA)
    answer: dict[str, str] = field(default_factory=dict)
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    @contextmanager
    def running(self) -> Iterator["Issuer"]:
        """Serve until the context ends."""
        started, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

        async def serve() -> None:
            app = web.Application()
            app.router.add_get("/.well-known/openid-configuration", self._describe)
            app.router.add_post("/token", self._refresh)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self.authority.issue_cert("127.0.0.1").configure_cert(tls)
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            self.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
            started.set()
            await stop.wait()
            await runner.cleanup()

        thread = threading.Thread(target=lambda: (loop.run_until_complete(serve()), loop.close()), daemon=True)
        thread.start()
        assert started.wait(10)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(10)

    async def _describe(self, _: web.Request) -> web.Response:
        return web.json_response({"token_endpoint": f"{self.url}/token"})

    async def _refresh(self, request: web.Request) -> web.Response:
        form = {key: str(value) for key, value in (await request.post()).items()}
        self.asked.append({**form, "authorization": request.headers.get("Authorization", "")})
        return web.json_response(self.answer)

    def user(self, **config: Any) -> dict[str, Any]:
        """The user of a kubeconfig with a login at this issuer."""
        trust = {"idp-certificate-authority-data": b64(self.authority.cert_pem)}
        known = {"client-id": "cli", "client-secret": "hush", "idp-issuer-url": self.url, **trust, **config}
        return {"auth-provider": {"name": "oidc", "config": known}}


def brought(user: dict[str, Any], directory: Path, *, times: int = 1) -> list[str]:
    """The tokens of a user, requested one after the other."""
    plugin = CredentialPlugin(user, path=directory / "config", seconds=20)

    async def ask() -> list[str]:
        return [await plugin.token() for _ in range(times)]

    return asyncio.run(ask())


def test_a_token_of_oidc_is_used_while_it_is_valid(tmp_path: Path):
    """Without a request to its issuer."""
    token = id_token(3600)
    with FakeKube(token=token) as server:
        path = edited(
            server.kubeconfig(tmp_path / "config"), user=Issuer(url="https://nowhere").user(**{"id-token": token})
        )
        assert 0 == listed(by_kubeconfig(path))


async def test_a_token_of_oidc_is_refreshed_before_it_expires(tmp_path: Path):
    """By the refresh token, which the issuer may replace; the kubeconfig is not changed."""
    first, second = id_token(30), id_token(3600)
    with Issuer().running() as issuer:
        issuer.answer = {"id_token": first, "refresh_token": "r2"}
        user = issuer.user(**{"id-token": id_token(-1), "refresh-token": "r1"})
        plugin = CredentialPlugin(user, path=tmp_path / "config", seconds=20)

        async def ask() -> list[str]:
            early = await plugin.token()
            issuer.answer = {"id_token": second}
            return [early, await plugin.token(), await plugin.token()]

        assert [first, second, second] == await ask()
    assert ["r1", "r2"] == [each["refresh_token"] for each in issuer.asked]
    assert {f"Basic {base64.b64encode(b'cli:hush').decode()}"} == {each["authorization"] for each in issuer.asked}


def test_a_public_client_has_no_secret(tmp_path: Path):
    """It sends its id in the form."""
    token = id_token(3600)
    with Issuer().running() as issuer:
        issuer.answer = {"id_token": token}
        assert [token] == brought(issuer.user(**{"refresh-token": "r", "client-secret": ""}), tmp_path)
    assert [("cli", "")] == [(each["client_id"], each["authorization"]) for each in issuer.asked]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"id-token": id_token(-1)}, "log in again with kubectl"),
        ({"id-token": "s3cret"}, "is not an OIDC token"),
        (
            {"refresh-token": "s3cret", "idp-certificate-authority-data": ""},
            "the server certificate is not trusted: it was issued by",
        ),
        (
            {"refresh-token": "s3cret", "idp-certificate-authority-data": "", "idp-certificate-authority": "nowhere"},
            "No such file",
        ),
    ],
    ids=["expired", "no token", "not trusted", "no authority"],
)
def test_an_expired_login_is_an_error(tmp_path: Path, config: dict[str, str], words: str):
    """No secret is sent to a server without a trusted certificate."""
    with Issuer().running() as issuer:
        user = issuer.user(**config)
        with pytest.raises(KubeRefused) as caught:
            brought(user, tmp_path)
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert [] == issuer.asked
