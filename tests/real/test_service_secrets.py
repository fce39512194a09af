"""A Prometheus behind TLS, a password and client certificates: read with the right ones, explained with the wrong."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import RunService, StartPrometheus
from tests.real.feed import Feed
from tests.real.parts import Prometheus, new_secret
from tests.service import Service
from tests.waiting import wait_for

pytestmark = pytest.mark.real

USER = "watcher"


def settings_for(prometheus: Prometheus, **provider: str) -> str:
    """TOML; a keyword that is "" is left out."""
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
    # a tick may take 0.8 of the interval, and what is wrong must be found out within it on a busy machine too
    return f'[refresh]\ninterval = "30s"\nresolution = "1s"\n[provider]\n{lines}\n'


@pytest.fixture
def password() -> str:
    return new_secret()


@pytest.fixture
def guarded(start_prometheus: StartPrometheus, password: str) -> Prometheus:
    """A Prometheus that wants a client certificate and a password."""
    return start_prometheus(client_certificates=True, basic_auth=(USER, password))


def everything_said(service: Service, *secrets: str) -> str:
    """All that the service tells of itself, in which no secret may stand."""
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


def test_with_all_that_is_needed_it_is_read(
    guarded: Prometheus, password: str, tmp_path: Path, run_service: RunService
):
    """Authority, client certificate, user and password from a file."""
    (tmp_path / "password").write_text(f"{password}\n")
    with Feed(guarded, 2):
        service = run_service(config=settings_for(guarded, password_file=str(tmp_path / "password")))
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
def test_what_is_wrong_is_said_and_no_secret_with_it(
    guarded: Prometheus, password: str, run_service: RunService, wrong: Wrong, reason: str
):
    """Health and findings have the reason and its cure; neither they nor anything else has the password."""
    service = run_service(config=settings_for(guarded, **wrong(guarded, password)))
    wait_for(lambda: "Prometheus is down" in service.log(), what="the first tick")
    health = service.get("/watcher/health")
    said = everything_said(service, password)
    (finding, *_) = service.get("/api/v1/findings").json()["findings"]
    assert "query_failed" == finding["kind"]
    assert reason in health.json()["error"]["message"] + finding["reason"], finding["reason"]
    assert "provider." in finding["reason"], "the cure names no setting"
    assert 1 == said.count("Prometheus is down"), service.log()
    assert 404 == service.get("/watcher").status
    assert 0 == service.stop()


def test_verification_is_left_out_only_where_that_is_said(
    guarded: Prometheus, password: str, tmp_path: Path, run_service: RunService
):
    """insecure_skip_verify, and one line in the log that says so."""
    settings = settings_for(guarded, password=password, ca_file="") + "insecure_skip_verify = true\n"
    with Feed(guarded, 2):
        service = run_service(config=settings)
        service.wait_for_status(200)
        assert 1 == service.log().count("is not verified")
        everything_said(service, password)
