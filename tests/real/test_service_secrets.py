"""A Prometheus with TLS, a password and client certificates: read with the right ones, and errors with wrong ones."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import RunService
from tests.real.feed import Feed
from tests.real.parts import Prometheus, new_secret
from tests.service import Service
from tests.waiting import wait_for
from watcher.service.settings.loading import load
from watcher.sources.errors import ProviderError
from watcher.sources.registry import build

pytestmark = pytest.mark.real

USER = "watcher"


def settings_for(prometheus: Prometheus, **provider: str) -> str:
    """The settings as TOML; a keyword that is "" is left out."""
    everything = {
        "name": "prometheus",
        "address": prometheus.url,
        "username": USER,
        "ca_file": str(prometheus.ca_file),
        "client_cert": str(prometheus.client_cert),
        "client_key": str(prometheus.client_key),
        **provider,
    }
    lines = "\n".join(f'{key} = "{value}"' for key, value in everything.items() if value)
    # a tick takes at most 0.8 of the interval, and must detect the error within it on a busy machine too
    return f'[refresh]\ninterval = "30s"\nresolution = "1s"\n[provider]\n{lines}\n'


@pytest.fixture(scope="module")
def password() -> str:
    return new_secret()


@pytest.fixture(scope="module")
def guarded(password: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that requires a client certificate and a password."""
    directory = tmp_path_factory.mktemp("guarded")
    with Prometheus(directory, client_certificates=True, basic_auth=(USER, password)) as server:
        yield server


@pytest.fixture(scope="module")
def fed(guarded: Prometheus) -> Iterator[Prometheus]:
    """The same with samples of two nodes."""
    with Feed(guarded, 2):
        yield guarded


def everything_said(service: Service, *secrets: str) -> str:
    """All texts of the service about itself, which must contain no secret."""
    paths = ("/watcher", "/watcher/health", "/readyz", "/healthz", "/metrics", "/api/v1/findings", "/openapi.json", "/")
    said = service.log() + "".join(service.get(path).text for path in paths)
    show = subprocess.run(
        [sys.executable, "-m", "load_watcher", "config", "show", "--config", str(service.config_file)],
        env=dict(service.environment()),
        capture_output=True,
        text=True,
    )
    assert "provider" in show.stdout
    said += show.stdout + show.stderr
    for database in service.directory.glob("load-watcher.db*"):
        said += database.read_bytes().decode("latin-1")
    for secret in secrets:
        assert secret not in said
    return said


def test_with_the_right_credentials_the_source_is_read(
    fed: Prometheus, password: str, tmp_path: Path, run_service: RunService
):
    """Authority, client certificate, user and a password file."""
    (tmp_path / "password").write_text(f"{password}\n")
    service = run_service(config=settings_for(fed, password_file=str(tmp_path / "password")))
    assert "node-0001" in service.wait_for_status(200).text
    assert 200 == service.get("/watcher/health").status
    everything_said(service, password)


Wrong = Callable[[Prometheus, str], dict[str, str]]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda _, password: {"password": f"{password}-not"}, "401"),
        (lambda _, password: {"password": password, "username": "someone-else"}, "401"),
        (lambda _, password: {"password": password, "ca_file": ""}, "certificate is not trusted"),
        (lambda _, password: {"password": password, "client_cert": "", "client_key": ""}, "client certificate"),
        (lambda _, password: {"username": "", "token": f"{password}-not"}, "401"),
        (
            lambda prometheus, password: {
                "password": password,
                "address": prometheus.url.replace("https:", "http:"),
            },
            "requires TLS",
        ),
        (
            lambda prometheus, password: {
                "username": "",
                "address": prometheus.url.replace("//", f"//{USER}:{password}-not@"),
            },
            "401",
        ),
    ],
    ids=["password", "user", "authority", "client certificate", "token", "plain http", "password in the address"],
)
async def test_an_error_has_the_reason_and_no_secret(
    guarded: Prometheus, password: str, tmp_path: Path, wrong: Wrong, reason: str
):
    """And a hint with the setting."""
    (tmp_path / "settings.toml").write_text(settings_for(guarded, **wrong(guarded, password)))
    source = build(load(flags={}, environ={}, cwd=tmp_path, file=tmp_path / "settings.toml"))

    async def fetch() -> None:
        await source.start()
        await source.fetch(time.time() - 300, time.time())

    try:
        with pytest.raises(ProviderError) as raised:
            await fetch()
    finally:
        await source.close()
    said = f"{raised.value} {raised.value.hint}"
    assert reason in said
    assert "provider." in said, "the hint names no setting"
    assert password not in said


def test_the_service_reports_the_reason_and_no_secret(guarded: Prometheus, password: str, run_service: RunService):
    """In its health and findings, with the remedy; the password is in no text."""
    service = run_service(config=settings_for(guarded, password=f"{password}-not"))
    wait_for(lambda: "cannot read from Prometheus" in service.log(), what="the first tick")
    health = service.get("/watcher/health")
    said = everything_said(service, password)
    (finding, *_) = service.get("/api/v1/findings").json()["findings"]
    assert "query_failed" == finding["kind"]
    assert "401" in health.json()["error"]["message"]
    assert "provider." in finding["reason"], "the cure names no setting"
    assert 1 == said.count("cannot read from Prometheus"), service.log()
    assert 404 == service.get("/watcher").status
    assert 0 == service.stop()


def test_verification_is_disabled_only_by_its_setting(fed: Prometheus, password: str, run_service: RunService):
    """insecure_skip_verify, with one line in the log."""
    settings = settings_for(fed, password=password, ca_file="") + "insecure_skip_verify = true\n"
    service = run_service(config=settings)
    service.wait_for_status(200)
    assert 1 == service.log().count("is not verified")
    everything_said(service, password)
