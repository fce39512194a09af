"""`load-watcher extender` and `load-watcher serve` as two processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from load_watcher.main import main
from tests.conftest import RunService
from tests.doctor import doctor
from tests.fakes.kube import FakeKube
from tests.real.parts import Server
from tests.real.scheduled_cluster import NodeLoad, write_trace
from tests.service import Answer, ExtenderService, Service, TlsService
from tests.waiting import wait_for

NODES = {
    "busy": NodeLoad(8, 32, 80.0, 60.0, 2.0),
    "half": NodeLoad(8, 32, 45.0, 40.0, 10.0),
    "idle": NodeLoad(16, 64, 5.0, 10.0, 3.0),
    "silent": NodeLoad(16, 64),
}
SETTINGS = """
[refresh]
interval = "1s"
resolution = "1s"
max_staleness = "{max_staleness}"

[kubernetes]
kubeconfig = "{kubeconfig}"
"""
PROFILE = """
[scheduler.default]
plugins = [
  { name = "TargetLoadPacking", args = { targetUtilization = 50 } },
  { name = "LoadAwareScheduling", args = { aggregated = { scoreAggregationType = "p95" } } },
]
"""
POD = {
    "metadata": {"name": "web", "namespace": "default", "uid": "u1"},
    "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]},
}


@pytest.fixture
def kube() -> Iterator[FakeKube]:
    with FakeKube() as server:
        for name, size in NODES.items():
            server.node(name, cpu=str(size.cores), memory=f"{size.gib}Gi")
        server.put("v1/pods", "default/web", metadata={"uid": "u1"}, spec=POD["spec"])
        yield server


@pytest.fixture
def settings(kube: FakeKube, tmp_path: Path) -> Callable[..., str]:
    kubeconfig = kube.kubeconfig(tmp_path / "kubeconfig")

    def of(*, max_staleness: str = "10m") -> str:
        return SETTINGS.format(kubeconfig=kubeconfig, max_staleness=max_staleness)

    return of


@pytest.fixture
def watch(run_service: RunService, tmp_path: Path) -> Callable[..., Service]:
    """Run a watcher that replays the load of the nodes."""
    trace = write_trace(tmp_path / "trace.csv", NODES)

    def run(config: str, *arguments: str, **options: Any) -> Service:
        return run_service("--provider", "replay", "--trace", str(trace), *arguments, config=config, **options)

    return run


@pytest.fixture
def extend(running: Callable[[Server], Server], tmp_path: Path) -> Callable[..., ExtenderService]:
    def run(watcher: Service, config: str, *, wait: bool = True, **options: Any) -> ExtenderService:
        env = {"LOAD_WATCHER_URL": watcher.url, **options.pop("env", {})}
        made = ExtenderService(tmp_path / "extender", config=config, env=env, **options)
        running(made)
        made.launch()
        return made.wait_ready() if wait else made

    return run


def post(service: Service, verb: str, body: Mapping[str, Any], *, profile: str = "default") -> Answer:
    url = f"{service.url}/scheduler/{profile}/{verb}"
    answer = service.session.post(url, json=body, timeout=30)
    return Answer(answer.status_code, answer.headers, answer.content)


def scores(service: Service) -> dict[str, int]:
    answer = post(service, "prioritize", {"pod": POD, "nodenames": list(NODES)})
    assert answer.status == 200, answer.text
    return {each["Host"]: each["Score"] for each in answer.json()}


def state(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = service.get("/readyz").json()
    return found


def wait_for_load(service: Service) -> None:
    """Until the 15-minute window of every node with load is there."""

    def is_loaded() -> bool:
        known = service.get("/scheduler/default/nodes").json()["nodes"]
        covers = [each["covers_s"] for node in known.values() for each in node["windows"].values()]
        return len(known) == len(NODES) and len(covers) >= 6 and all(900.0 in each.values() for each in covers)

    wait_for(is_loaded, what="the load of the extender")


def stable_load(*services: Service) -> None:
    for service in services:
        wait_for_load(service)


def log_of(service: Service, part: str) -> list[str]:
    return [line for line in service.log().splitlines() if part in line]


def run_to_end(directory: Path, *arguments: str, config: str = "", env: Mapping[str, str] | None = None) -> Any:
    """Run a command that must end by itself."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "settings.toml").write_text(config)
    made = Service(directory, env=env or {})
    command = [sys.executable, "-m", "load_watcher", *arguments, "--config", str(directory / "settings.toml")]
    return subprocess.run(
        command, cwd=directory, env=dict(made.environment()), capture_output=True, text=True, timeout=60, check=False
    )


def test_both_processes_score_alike_and_decisions_are_stored(
    watch: Any, extend: Any, settings: Callable[..., str], tmp_path: Path
) -> None:
    """The watcher has the same profile. The decisions of the extender outlive it, and `why` shows them."""
    standing = settings().replace('interval = "1s"', 'interval = "10m"')
    watcher = watch(standing + PROFILE)
    extender = extend(watcher, settings() + PROFILE)
    stable_load(watcher, extender)
    assert scores(watcher) == scores(extender)
    assert len(set(scores(extender).values())) > 2
    explained = [post(each, "explain", {"pod": POD, "nodenames": list(NODES)}).json() for each in (watcher, extender)]
    assert len({tuple((node["name"], node["score"]) for node in each["nodes"]) for each in explained}) == 1
    assert state(extender)["watcher"] | {"age_s": 0} == {
        "ok": True,
        "reason": "",
        "version": watcher.get("/api/v1/overview").json()["version"],
        "windows": ["5m", "10m", "15m"],
        "age_s": 0,
    }
    assert "load_watcher_extender_watcher_up 1.0" in extender.get("/metrics").text
    assert "/scheduler/{profile}/prioritize" in extender.get("/openapi.json").json()["paths"]
    assert 404 == extender.get("/watcher").status
    assert 0 == extender.stop()
    assert (tmp_path / "extender" / "load-watcher-extender.db").exists()
    extender.start()
    why = [sys.executable, "-m", "load_watcher", "why", "default/web", "--url", extender.url]
    done = subprocess.run(
        why, cwd=tmp_path, env=dict(extender.environment()), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "idle" in done.stdout
    (entry, *_) = extender.get("/scheduler/placements?pod=web").json()["placements"]
    assert (entry["pod"]["name"], entry["best"], entry["reason"] != "") == ("web", "idle", True)
    assert 404 == watcher.get("/scheduler/decisions?pod=default/nobody").status


def test_a_watcher_that_is_killed_and_returns(watch: Any, extend: Any, settings: Callable[..., str]) -> None:
    """Its last load is used until it is stale; then the answers are those without load. The process stays ready."""
    config = settings(max_staleness="5s")
    watcher = watch(config)
    extender = extend(watcher, config + PROFILE)
    wait_for(lambda: len(set(scores(extender).values())) > 2, what="scores by load")
    watcher.kill()
    wait_for(lambda: not state(extender)["watcher"]["ok"], what="the failure to be noticed")
    wait_for(lambda: state(extender)["watcher"]["age_s"] is None, what="the load to be stale")
    without = scores(extender)
    assert (200, 200) == (extender.get("/healthz").status, extender.get("/readyz").status)
    assert "no response from" in state(extender)["watcher"]["reason"]
    assert "load_watcher_extender_watcher_up 0.0" in extender.get("/metrics").text
    watcher.start()
    wait_for(lambda: state(extender)["watcher"]["ok"], what="the watcher to be back")
    wait_for(lambda: scores(extender) != without, what="scores by load again")
    assert 1 == len(log_of(extender, "load is unavailable"))
    assert 1 == len(log_of(extender, "load is available"))
    assert 0 == extender.stop()


def test_a_start_without_the_watcher(watch: Any, extend: Any, settings: Callable[..., str], tmp_path: Path) -> None:
    """The process starts and answers; when the watcher comes, a window that it does not serve is reported."""
    args = '{ aggregated = { scoreAggregationType = "p95", scoreAggregatedDuration = "30m" } }'
    profile = f'[scheduler.default]\nplugins = [ {{ name = "LoadAwareScheduling", args = {args} }} ]\n'
    watcher = watch(settings(), wait=False)
    watcher.kill()
    extender = extend(watcher, settings() + profile)
    wait_for(lambda: extender.get("/readyz").status == 200, what="nodes and pods")
    assert len(set(scores(extender).values())) == 1
    assert not state(extender)["watcher"]["ok"]
    watcher.start()
    wait_for(lambda: state(extender)["lacks"], what="the problem to be found")
    (problem,) = state(extender)["lacks"]["default"]
    assert "scoreAggregatedDuration" in problem
    assert log_of(extender, "profile default lacks data")
    explanation = post(extender, "explain", {"pod": POD, "nodenames": ["idle"]}).json()
    assert [problem] == explanation["lacks"]
    refused = run_to_end(
        tmp_path / "second", "extender", "--port", "0", "--watcher", watcher.url, config=settings() + profile
    )
    assert 2 == refused.returncode, refused.stderr
    assert "is not served; served windows: 5m, 10m, 15m" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "config", "said"),
    [
        ([], PROFILE, ["extender.watcher: the address of the watcher is not set", "LOAD_WATCHER_URL"]),
        (["--watcher", "http://localhost:1"], "", ["scheduler: no profiles are configured"]),
        (["--watcher", "localhost:2020"], PROFILE, ["must be an http:// or https:// address"]),
        (["--watcher", "http://u:p@localhost:1"], PROFILE, ["extender.watcher", "given an address with a user"]),
        (
            ["--watcher", "http://localhost:1"],
            PROFILE + '[extender]\nwatcher_token_file = "nowhere"\n',
            ["extender.watcher_token_file", "does not exist"],
        ),
        (
            ["--watcher", "http://localhost:1"],
            PROFILE + '[extender]\nwatcher_ca_file = "settings.toml"\n',
            ["extender: cannot use the files", "extender.watcher_ca_file (PEM)"],
        ),
    ],
    ids=["no address", "no profile", "no URL", "user", "no token", "no certificate"],
)
def test_what_cannot_start_says_why(
    arguments: list[str], config: str, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.toml").write_text(config)
    done = CliRunner().invoke(main, ["extender", "--port", "0", *arguments, "--config", "settings.toml"])
    assert (2, True) == (done.exit_code, isinstance(done.exception, SystemExit)), done.exception
    for each in said:
        assert each in done.stderr


def test_settings_are_read_again(watch: Any, extend: Any, settings: Callable[..., str], tmp_path: Path) -> None:
    """At SIGHUP: other profiles, unless they are invalid or the watcher does not offer their data. A start with such a
    profile is refused."""
    watcher = watch(settings(), "--set", "refresh.pods=off")
    extender = extend(watcher, settings() + PROFILE)
    wait_for(lambda: state(extender)["watcher"]["ok"], what="the watcher")

    def write(profile: str) -> None:
        extender.config_file.write_text(settings() + profile)
        extender.process.send_signal(signal.SIGHUP)

    write(PROFILE.replace("scheduler.default", "scheduler.other"))
    wait_for(lambda: log_of(extender, "settings reloaded"), what="the reload")
    assert ["other"] == extender.get("/scheduler/plugins").json()["profiles"]
    plugin = '{ name = "LoadAwareScheduling", args = { nodeMetricSource = "windowsAndPods" } }'
    with_pods = f"[scheduler.default]\nplugins = [ {plugin} ]\n"
    write(with_pods)
    wait_for(lambda: log_of(extender, "settings not reloaded"), what="the refusal")
    assert log_of(extender, "LoadAwareScheduling needs pod usage")
    assert ["other"] == extender.get("/scheduler/plugins").json()["profiles"]
    write("")
    wait_for(lambda: len(log_of(extender, "settings not reloaded")) == 2, what="the second refusal")
    done = run_to_end(
        tmp_path / "e", "extender", "--port", "0", "--watcher", watcher.url, config=settings() + with_pods
    )
    assert 2 == done.returncode, done.stderr
    assert "scheduler.default: LoadAwareScheduling needs pod usage" in done.stderr
    assert "fix: use a source with pod usage" in done.stderr


def test_another_watcher_is_checked_at_a_reload(
    watch: Any, running: Callable[[Server], Server], settings: Callable[..., str], tmp_path: Path
) -> None:
    """The reload is refused if that watcher does not offer the data; otherwise its load is used."""
    first, other = watch(settings()), watch(settings(), "--set", "refresh.windows=5m,30m")

    def config(watcher: Service, duration: str) -> str:
        args = f'{{ aggregated = {{ scoreAggregationType = "p95", scoreAggregatedDuration = "{duration}" }} }}'
        profile = f'[scheduler.default]\nplugins = [ {{ name = "LoadAwareScheduling", args = {args} }} ]\n'
        return f'{settings()}[extender]\nwatcher = "{watcher.url}"\n{profile}'

    extender = ExtenderService(tmp_path / "extender", config=config(first, "10m"))
    running(extender)
    extender.start()
    wait_for(lambda: state(extender)["watcher"]["ok"], what="the first watcher")
    assert extender.process is not None
    extender.config_file.write_text(config(other, "10m"))
    extender.process.send_signal(signal.SIGHUP)
    wait_for(lambda: log_of(extender, "settings not reloaded"), what="the refusal")
    assert log_of(extender, "served windows: 5m, 30m")
    extender.config_file.write_text(config(other, "30m"))
    extender.process.send_signal(signal.SIGHUP)
    wait_for(lambda: log_of(extender, "settings reloaded"), what="the reload")
    assert ["5m", "30m"] == state(extender)["watcher"]["windows"]
    assert not log_of(extender, "lacks data")


def test_the_doctor_checks_its_settings_and_its_status(
    watch: Any, running: Callable[[Server], Server], settings: Callable[..., str], tmp_path: Path
) -> None:
    """The samples and the settings of a watcher are not checked, since it has none."""
    watcher = watch(settings())
    config = f'{settings()}[extender]\nwatcher = "{watcher.url}"\n{PROFILE}'
    extender = ExtenderService(tmp_path / "extender", config=config)
    running(extender)
    extender.start()
    wait_for(lambda: state(extender)["watcher"]["ok"] and extender.get("/readyz").status == 200, what="the load")
    only = [part for name in ("port", "service", "series") for part in ("--only", name)]
    asked = ("--config", str(extender.config_file), "--port", str(extender.port), *only)
    well = doctor(*asked)
    assert set() == well.failed(), well
    well.one("settings", "ok", "for load-watcher extender", watcher.url)
    well.one("port", "ok", "with equal settings")
    well.one("service", "ok", "load-watcher extender is ready", f"{len(NODES)} nodes")
    well.one("source", "ok", f"the watcher at {watcher.url} answers", "5m, 10m, 15m")
    assert ["skipped"] == [each.status for each in well.of("series")]
    doctor("--provider", "host", "--port", str(extender.port), "--only", "port").one(
        "port", "warn", "is load-watcher extender"
    )
    extender.config_file.write_text(config.replace('"p95"', '"p95", scoreAggregatedDuration = "30m"'))
    doctor(*asked).one("source", "fail", "'30m' is not served", "of the watcher")
    watcher.kill()
    wait_for(lambda: not state(extender)["watcher"]["ok"], what="the failure to be noticed")
    down = doctor(*asked)
    assert {"service", "source"} == down.failed(), down
    down.one("service", "fail", "it gets no load from the watcher: no response")


def test_https_and_tokens_on_both_sides(
    watch: Any, running: Any, settings: Callable[..., str], certificates: Path, tmp_path: Path
) -> None:
    """The watcher protects reads; so does the extender, with a token of its own that is rotated. No secret reaches the
    log, and probes without a token show no address."""
    (tmp_path / "watcher-token").write_text("secret-of-the-watcher\n")
    (tmp_path / "extender-token").write_text("secret-of-the-extender\n")
    files = f'tls_cert = "{certificates}/server.pem"\ntls_key = "{certificates}/server.key"\nprotect_reads = true\n'
    watcher = TlsService(
        tmp_path / "watcher",
        "--provider",
        "replay",
        "--trace",
        str(write_trace(tmp_path / "t.csv", NODES)),
        folder=certificates,
        config=f'[server]\n{files}token_file = "{tmp_path}/watcher-token"\n{settings()}',
    )
    running(watcher)
    watcher.start()
    mine = f'[server]\n{files}token_file = "{tmp_path}/extender-token"\n{settings()}{PROFILE}'
    access = f'[extender]\nwatcher_token_file = "{tmp_path}/watcher-token"\nwatcher_ca_file = "{certificates}/ca.pem"\n'
    extender = ExtenderOverTls(
        tmp_path / "extender", "--watcher", watcher.url, folder=certificates, config=mine + access
    )
    running(extender)
    extender.start()
    wait_for(lambda: state(extender)["watcher"]["ok"], what="the load")
    assert 401 == extender.get("/scheduler/plugins").status
    token = {"Authorization": "Bearer secret-of-the-extender"}
    assert 200 == extender.get("/scheduler/plugins", headers=token).status
    wait_for(lambda: scores(extender), what="scores")  # kube-scheduler sends no token
    assert 421 == extender.get("/healthz", headers={"Host": "evil.test"}).status

    (tmp_path / "extender-token").write_text("secret-of-another-day\n")
    assert extender.process is not None
    extender.process.send_signal(signal.SIGHUP)
    renewed = {"Authorization": "Bearer secret-of-another-day"}
    wait_for(lambda: extender.get("/scheduler/plugins", headers=renewed).status == 200, what="the new token")
    assert 401 == extender.get("/scheduler/plugins", headers=token).status
    assert log_of(extender, f"server.token_file ({tmp_path}/extender-token) changed and was read again")

    watcher.kill()
    extender.session.cert = None
    extender.session.close()
    wait_for(lambda: not state(extender)["watcher"]["ok"], what="the failure to be noticed")
    assert "" == state(extender)["watcher"]["reason"]
    assert watcher.url in extender.get("/readyz", headers=renewed).json()["watcher"]["reason"]
    assert "secret-of" not in extender.log() + watcher.log()


class ExtenderOverTls(TlsService):
    """A `load-watcher extender` over https."""

    name = "extender"
    verb = "extender"
