"""`load-watcher doctor` as a command: its checks, its results for each failure, and its exit codes."""

import asyncio
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner
from rich.console import Console

import watcher
from load_watcher import main
from load_watcher.doctor import report
from tests.conftest import RunService
from tests.doctor import Reported, doctor
from tests.fakes.kube import LEASES, NODE_METRICS, NODES, POD_METRICS, PODS, FakeKube, Fault
from tests.fakes.kube_rules import status_object
from tests.fakes.prometheus import Answer, Asked, FakePrometheus, matrix, responded, until_hung_up, vector
from tests.fakes.service import Live
from tests.real.parts import REPOSITORY, free_port, make_certificates
from tests.waiting import wait_for
from watcher.koordinator.publisher_source import LEASE
from watcher.platform.checks.examination import Check, CheckContext, examine, in_thread
from watcher.platform.checks.results import CheckResult, CheckStatus, DoctorReport, fail, ok, skipped, warn
from watcher.store.commands import database_at, upgrade
from watcher.store.tables import REVISIONS


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory, in which the database and the settings file are searched."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def source() -> Iterator[list[str]]:
    """Options for a working source: a Prometheus with the CPU of two nodes."""
    with FakePrometheus(healthy) as server:
        yield ["--provider", "prometheus", "--address", server.url, "--set", "provider.metrics=CPU"]


def of_this_host(*arguments: str, env: Mapping[str, str] | None = None) -> Reported:
    """The result with the host as the source. A machine that is too busy for its first sample within three seconds,
    which doctor reports as a failure, gets more attempts."""
    for _ in range(5):
        said = doctor("--provider", "host", *arguments, env=env)
        if said.of("source", "ok"):
            break
    return said


# --- the examination -------------------------------------------------------------------------------------------------


def run_checks(*checks: Check) -> list[CheckResult]:
    def load() -> Any:
        raise AssertionError("no check reads the settings here")

    return asyncio.run(examine(CheckContext(load, environ={}, cwd=Path()), checks))


def test_a_check_that_fails_or_hangs_affects_only_its_own_line():
    """Checks that need its result are skipped with the reason; others that come after it run."""

    async def breaks(_: CheckContext) -> list[CheckResult]:
        raise RuntimeError("s3cret")

    async def hangs(_: CheckContext) -> list[CheckResult]:
        await asyncio.Event().wait()
        return []

    async def works(_: CheckContext) -> list[CheckResult]:
        return [ok("well"), warn("so so", "do this")]

    results = run_checks(
        Check("breaks", breaks),
        Check("hangs", hangs, deadline=0.01),
        Check("works", works),
        Check("later", works, needs=("works",)),
        Check("needy", works, needs=("works", "hangs")),
        Check("follows", works, after=("breaks",)),
    )
    assert [
        ("breaks", "fail"),
        ("hangs", "fail"),
        *[("works", "ok"), ("works", "warn"), ("later", "ok"), ("later", "warn"), ("needy", "skipped")],
        *[("follows", "ok"), ("follows", "warn")],
    ] == [(result.check, result.status) for result in results]
    assert "RuntimeError" in results[0].what
    assert "s3cret" not in str(results)
    assert "did not finish within 0.01 s" in results[1].what
    assert "check 'hangs' failed" in results[6].what


def test_blocking_calls_run_in_a_thread():
    """The result is returned, and a call that never ends blocks neither the check nor the process."""
    reading, writing = os.pipe()

    async def calls(_: CheckContext) -> list[CheckResult]:
        with pytest.raises(FileNotFoundError):
            await in_thread(Path("nowhere").read_text)
        return [ok(await in_thread(lambda: "well"))]

    async def blocks(_: CheckContext) -> list[CheckResult]:
        await in_thread(lambda: os.read(reading, 1))
        return []

    results = run_checks(Check("calls", calls), Check("blocks", blocks, deadline=0.05))
    os.close(writing)  # the call ends now, without a caller
    assert ["ok", "fail"] == [result.status for result in results]


def test_a_name_cannot_make_a_second_line():
    """Control characters are escaped."""

    async def tells(_: CheckContext) -> list[CheckResult]:
        return [ok("node a\nok all \x1b[32mwell")]

    (result,) = run_checks(Check("tells", tells))
    assert r"node a\nok all \x1b[32mwell" == result.what


def test_only_failures_have_exit_code_1():
    assert 0 == DoctorReport("1", [ok("a"), warn("b", "c"), skipped("d")]).exit_code
    assert 1 == DoctorReport("1", [ok("a"), fail("b", "c")]).exit_code


# --- the pages -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_text_has_a_line_per_result_of_any_length(source: list[str]):
    """With the remedy below it, and the totals at the end."""
    result = CliRunner().invoke(main.main, ["doctor", "--port", "0", *source])
    assert 0 == result.exit_code, result.output
    lines = result.stdout.splitlines()
    assert "ok      settings     valid; provider of samples: prometheus (set by flag --provider)" == lines[0]
    (series,) = (line for line in lines if line.startswith("ok      series       CPU: instance:node_cpu:ratio"))
    assert len(series) > 80
    assert "skipped scheduler    no scheduler configuration given (--scheduler-config FILE)" in lines
    assert " 0 warnings, 0 failed, 10 skipped" in lines[-1]
    assert not [line for line in lines if "fix:" in line], "there is no failure"


@pytest.mark.slow
def test_the_output_can_be_restricted_to_failures_and_warnings(source: list[str], tmp_path: Path):
    """With the number of all results."""
    (tmp_path / "bad.yaml").write_text("a: [")
    bad = ["--scheduler-config", str(tmp_path / "bad.yaml"), "--failures", "--port", "0", *source]
    result = CliRunner().invoke(main.main, ["doctor", *bad])
    failed, fix, summary = result.stdout.splitlines()
    assert failed.startswith("fail    scheduler    bad.yaml: invalid YAML")
    assert "fix:" in fix
    assert re.fullmatch(r"[1-9]\d+ ok, 0 warnings, 1 failed, 9 skipped", summary)
    document = json.loads(CliRunner().invoke(main.main, ["doctor", "-o", "json", *bad]).stdout)
    assert ["scheduler"] == [each["name"] for each in document["checks"]]
    assert document["counts"]["ok"] > 9


def test_a_terminal_gets_colours_and_lines_of_its_width(tmp_path: Path):
    """Nothing is truncated."""
    with (tmp_path / "out").open("w+") as file:
        console = Console(file=file, force_terminal=True, width=60, color_system="standard", highlight=False)
        with report.Printer(console) as printer:
            printer.tell(
                CheckResult(CheckStatus.FAIL, "something [is] wrong " * 5, "do this about it " * 5, "settings")
            )
        printer.close(DoctorReport("1", [fail("x", "y")]))
        file.seek(0)
        text = file.read()
    assert "\x1b[1;31mfail" in text
    assert "[is]" in text
    shown = Console(width=60).render_str(text.replace("[is]", "")).plain
    assert 5 == shown.count("about it")
    assert "0 ok, 0 warnings, 1 failed, 0 skipped" in text


@pytest.mark.slow
def test_json_is_a_single_document(source: list[str]):
    """Version, status, counts, and the checks in their order."""
    result = CliRunner().invoke(main.main, ["doctor", "-o", "json", "--port", "0", *source])
    document = json.loads(result.stdout)
    assert ["version", "status", "counts", "checks"] == list(document)
    assert (watcher.__version__, "ok") == (document["version"], document["status"])
    assert {"ok", "warn", "fail", "skipped"} == set(document["counts"])
    assert "" == result.stderr
    names = list(dict.fromkeys(each["name"] for each in document["checks"]))
    assert ["settings", "surroundings", "port", "service", "database", "source", "series"] == names[:7]


@pytest.mark.parametrize(
    "bad", [["--url", "load-watcher:2020"], ["--scheduler-config", "no.yaml"], ["-o", "xml"], ["x"]]
)
def test_invalid_arguments_are_exit_code_2(bad):
    """With the usage and the problem, as from click."""
    result = CliRunner().invoke(main.main, ["doctor", *bad])
    assert 2 == result.exit_code
    assert "Usage: " in result.stderr


@pytest.mark.slow
def test_the_exit_code_is_that_of_the_process(source: list[str]):
    """Nothing is on standard error."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    for arguments, code in ((source, 0), (["--provider", "promethues"], 1)):
        program = [sys.executable, "-m", "load_watcher", "doctor", "--port", "0", *arguments]
        ended = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert (code, "") == (ended.returncode, ended.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "first"),
    [
        (["--log-level", "debug", "--log-format", "json"], '{"ts":'),
        (["--verbose", "--log-format", "json"], '{"ts":'),
        (["--log-level", "trace"], "20"),
    ],
)
def test_log_messages_are_shown_with_the_given_level_and_format(source: list[str], options: list[str], first: str):
    """In a separate process, because logging is set up per process."""
    program = [sys.executable, "-m", "load_watcher", "doctor", "--port", "0", "--only", "source", *source, *options]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert {True} == {line.startswith(first) for line in ended.stderr.splitlines()}
    assert "debug" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("check", ["service", "database"])
def test_a_check_alone_detects_the_service_by_itself(source: list[str], check: str):
    """Without the line of the check `port`, which --only leaves out."""
    with Live() as live:
        responded = doctor(*source, "--port", str(live.port), "--only", check)
        assert {"settings", check} == {line.name for line in responded.lines}
        assert 0 == responded.exit_code, str(responded)
    responded = doctor(*source, "--only", "service")
    responded.one("service", "skipped", "no service runs at", "--url checks another one")


# --- settings and surroundings ---------------------------------------------------------------------------------------


def test_a_misspelt_provider_name_is_reported():
    """The Go load-watcher silently uses metrics-server."""
    responded = doctor(env={"METRICS_PROVIDER_NAME": "Promethues"})
    assert (1, {"settings"}) == (responded.exit_code, responded.failed())
    assert (
        "did you mean prometheus?" in responded.one("settings", "fail", "provider.name", "METRICS_PROVIDER_NAME").cure
    )
    assert {"skipped"} == {line.status for line in responded.of("source")}


def test_all_problems_of_the_settings_are_reported_at_once():
    """Each with its key."""
    responded = doctor("--set", "refresh.interval=soon", "--set", "server.prot=1", "--set", "provider.token=s3cret")
    assert 2 == len(responded.of("settings", "fail")), str(responded)
    responded.one("settings", "fail", "server.prot", "did you mean server.port?")
    responded = doctor("--config", "nowhere.toml")
    responded.one("settings", "fail", "cannot read nowhere.toml")


@pytest.mark.slow
def test_settings_without_an_effect_are_a_warning(source: list[str]):
    """They are valid."""
    responded = doctor(*source, "--set", "store.watcher_id=a")
    assert 0 == responded.exit_code
    responded.one("settings", "warn", "store.watcher_id is set but not used: store.url names a file")


@pytest.mark.slow
def test_the_host_in_a_pod_needs_the_name_of_its_node():
    """Otherwise the load has the name of a container, which no scheduler knows; and loopback is not reachable."""
    pod = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    lost = doctor("--provider", "host", env=pod)
    assert (
        "fieldRef spec.nodeName" in lost.one("surroundings", "fail", "NODE_NAME is not set", socket.gethostname()).cure
    )
    lost.one("surroundings", "warn", "server.host is 127.0.0.1", "set server.host to ::")
    named = of_this_host("--host", "0.0.0.0", env={**pod, "NODE_NAME": "node-1"})
    named.one("surroundings", "ok", "a pod of a cluster")
    named.one("addresses", "ok", "node-1")


@pytest.mark.slow
def test_the_certificate_of_the_service_must_match_its_key(tmp_path: Path):
    """serve would fail at its start."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        make_certificates(tmp_path / name)
    good = {"tls_cert": "one/server.pem", "tls_key": "one/server.key"}
    responded = doctor(*[f"--set=server.{key}={value}" for key, value in good.items()])
    responded.one("surroundings", "ok")
    responded = doctor(
        *[f"--set=server.{key}={value}" for key, value in (good | {"tls_key": "other/server.key"}).items()]
    )
    assert "tls_key must belong to tls_cert" in responded.one("surroundings", "fail", "TLS files of [server]").cure


# --- port and service ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_process_that_uses_the_port_is_named():
    """Another program: this one."""
    with FakePrometheus(lambda _: responded("not here", status=404)) as other:
        said = doctor("--port", str(other.port))
    line = said.one("port", "fail", f"127.0.0.1:{other.port} is in use by", f"process {os.getpid()}")
    assert "server.port" in line.cure
    said.one("service", "skipped", "--url")


@pytest.mark.slow
def test_an_address_of_another_machine_cannot_be_used():
    """TEST-NET-1 belongs to no machine; an invalid name has no address."""
    responded = doctor("--host", "192.0.2.1", "--port", "20")
    assert "::" in responded.one("port", "fail", "192.0.2.1:20 is not an address of this machine").cure
    responded = doctor("--host", "no..name", "--port", "20")
    responded.one("port", "fail", "cannot resolve the host name", "server.host")


@pytest.mark.slow
def test_beside_a_running_service_there_is_no_failure(run_service: RunService):
    """The service itself uses port and database, and is queried for its state; as run by kubectl exec."""
    service = run_service("--set", "refresh.resolution=1")
    service.wait_for_status(200)
    url = f"sqlite:///{service.directory}/load-watcher.db"
    arguments = ["--port", str(service.port), "--store-url", url]
    responded = of_this_host(*arguments)
    assert 0 == responded.exit_code, str(responded)
    responded.one(
        "port", "ok", f"a load-watcher already listens on 127.0.0.1:{service.port} ", f"process {service.pid}"
    )
    responded.one("port", "ok", "with equal settings; a second one cannot start")
    other = of_this_host(*arguments, "--set", "refresh.windows=5m", "--interval", "30s")
    line = other.one("port", "warn", f"already listens on 127.0.0.1:{service.port} ", "with other settings")
    assert "windows is 5m, 10m, 15m there, 5m here; refresh.interval is 60 s there, 30 s here" in line.what
    other.one("service", "ok", "the last refresh of the service succeeded")
    responded.one("service", "warn", "no node has its 5m window yet")
    responded.one("service", "ok", "the last refresh of the service succeeded")
    responded.one("database", "ok", f"in use by process {service.pid}", "as expected")
    elsewhere = doctor("--store-url", url)
    elsewhere.one("database", "fail", f"is in use by process {service.pid}", "set a different store.url")
    elsewhere.one("service", "skipped")
    asked = doctor("--url", f"{service.url}/")
    asked.one("service", "warn", "/readyz returned 503", "wait for the windows to fill")


@pytest.mark.slow
def test_the_failed_source_of_a_running_service_is_reported(run_service: RunService, tmp_path: Path):
    """In the words of the service, with its token if necessary."""
    (tmp_path / "token").write_text("s3cret")
    with FakePrometheus(lambda _: responded("no", status=403)) as server:
        config = '[server]\nprotect_reads = true\ntoken_file = "../token"\n'
        service = run_service("--provider", "prometheus", "--address", server.url, config=config)
        service.wait_for_status(401, "/watcher/health")
        without = doctor("--url", service.url)
        assert "server.token_file" in without.of("service", "fail")[-1].cure
        said = doctor_until_down(service.url)
    said.one("service", "fail", "/readyz returned 503", "no metrics yet")
    said.one("service", "fail", "/watcher/health returned 503", "403")
    assert "s3cret" not in said.output


def doctor_until_down(url: str) -> Reported:
    """Run doctor until the first tick has failed."""
    said: list[Reported] = []

    def failed() -> bool:
        said[:] = [doctor("--url", url, "--set", "server.token_file=token")]
        return any("403" in line.what for line in said[0].of("service"))

    wait_for(failed, what="the first tick to fail")
    return said[0]


@pytest.mark.slow
def test_another_program_or_none_at_the_address_is_reported():
    with FakePrometheus(lambda _: responded("<html>", status=404)) as server:
        other = doctor("--url", server.url)
    assert "--url" in other.one("service", "fail", "not a load-watcher").cure
    silent = doctor("--url", server.url)
    assert "check that it runs" in silent.one("service", "fail", "Connection refused").cure
    secret = doctor("--url", f"http://me:s3cret@127.0.0.1:{server.port}")
    assert "s3cret" not in secret.output


# --- the database ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_existing_or_future_database_passes(tmp_path: Path):
    """The check creates and changes nothing."""
    responded = doctor("--set", "provider.metrics=CPU")
    responded.one("database", "ok", "does not exist yet; serve will create it")
    assert [] == os.listdir(tmp_path)
    upgrade(database_at("sqlite:///load-watcher.db"))
    before = {name: Path(name).read_bytes() for name in sorted(os.listdir(tmp_path))}
    doctor().one("database", "ok", f"has schema {REVISIONS[-1]}")
    assert before == {name: Path(name).read_bytes() for name in sorted(os.listdir(tmp_path))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"SQLite format 3\0" + b"x" * 4096, ("is damaged", "set-aside")),
        (b"not a database at all" * 100, ("is not an SQLite database", "store.url")),
    ],
)
def test_an_unusable_database_is_a_failure_with_a_remedy(tmp_path: Path, content: bytes, words: tuple[str, ...]):
    """With set-aside, it is only a warning."""
    (tmp_path / "a.db").write_bytes(content)
    doctor("--store-url", "sqlite:///a.db").one("database", "fail", *words)
    aside = doctor("--store-url", "sqlite:///a.db", "--set", "store.on_unusable=set-aside")
    aside.one("database", "warn", "serve will rename it")
    assert content == (tmp_path / "a.db").read_bytes()


@pytest.mark.slow
def test_a_database_of_a_newer_version_is_a_failure():
    """With a remedy."""
    upgrade(database_at("sqlite:///load-watcher.db"))
    with closing(sqlite3.connect("load-watcher.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    doctor().one("database", "fail", "was written by a newer version", "run the newer version again")


@pytest.mark.slow
@pytest.mark.real
def test_a_database_on_a_server_is_checked(server_database: str):
    """An empty one, one with tables, one in use by a watcher of the same name, and an unreachable one; the password is
    never shown."""
    mine = ("--store-url", server_database, "--set", "store.watcher_id=a", "--set", "provider.metrics=CPU")
    doctor(*mine).one("database", "ok", "has no tables yet; serve will create them")
    upgrade(database_at(server_database))
    doctor(*mine).one("database", "ok", f"has schema {REVISIONS[-1]}")
    with database_at(server_database, watcher="a") as other:
        other.acquire(owner="")
        said = doctor(*mine)
        assert "set a different store.watcher_id" in said.one("database", "fail", "is in use by load-watcher on ").cure
    elsewhere = re.sub(r"@[^/]*/", f"@127.0.0.1:{free_port()}/", server_database)
    away = doctor("--store-url", elsewhere, "--set", "provider.metrics=CPU")
    assert "the server" in away.one("database", "fail", "Connection refused").cure
    odd = doctor("--store-url", f"{server_database}?sslmod=require", "--set", "provider.metrics=CPU")
    assert "describes store.url" in odd.one("database", "fail", "sslmod").cure
    password = server_database.partition("://")[2].partition("@")[0].partition(":")[2]
    assert password not in away.output + said.output + odd.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ([], "ok", ("2 nodes take about 0 MB in 24 h", "2,147 MB")),
        (["--set", "store.retention=8760h"], "ok", ("2 nodes take about 15 MB in 8760 h", "2,147 MB")),
        (
            ["--set", "store.retention=8760h", "--set", "store.max_size=16MiB", "--set", "provider.metrics=CPU,Memory"],
            "warn",
            ("30 MB", "17 MB, enough for 4855 h"),
        ),
    ],
)
def test_the_limit_of_the_database_is_compared_with_the_fleet(
    source: list[str], options: list[str], status: str, words: tuple[str, ...]
):
    """Two nodes, three windows, one metric or two; a configured limit may be too small."""
    found = doctor(*source, *options).one("retention", status, *words)
    assert ("store.max_size" in found.cure) == (status == "warn")


@pytest.mark.slow
def test_a_missing_directory_of_the_database_is_a_failure():
    responded = doctor("--store-url", "sqlite:////no/such/place/a.db")
    assert "mkdir -p /no/such/place" in responded.one("database", "fail", "does not exist").cure


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True, text=True)
    if mounted.returncode:
        reason = f"cannot mount a tmpfs: {mounted.stderr.strip()}"
        if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.slow
@pytest.mark.real
def test_a_full_small_or_read_only_disk_is_reported(small_disk: Path):
    """For the directory of the database."""
    url = ["--store-url", f"sqlite:///{small_disk}/a.db"]
    small = doctor(*url)
    assert "store.max_size" in small.one("database", "warn", "2 MB are free").cure
    (small_disk / "filler").write_bytes(bytes(2 << 20))
    assert "free space" in doctor(*url).one("database", "fail", "No space left on device").cure
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert "store.url" in doctor(*url).one("database", "fail", "is not writable").cure


# --- the source ------------------------------------------------------------------------------------------------------


def healthy(asked: Asked, *, nodes: str = "a b") -> bytes:
    """CPU and memory of two nodes, every 15 seconds until now."""
    if "container_" in asked.query:
        return vector()
    one, other = nodes.split()
    if asked.query.startswith(("count", "topk")):
        return vector({"node": one, "instance": "1:1"}, {"node": other, "instance": "2:1"})
    until = float(asked.parameters["time"])
    span = int(asked.query.rpartition("[")[2].removesuffix("s]"))
    times = [float(at) for at in range(int((until - span) // 15 + 1) * 15, int(until) + 1, 15)]
    values = [(at, str(0.3 + at % 7 / 100)) for at in times]
    return matrix(({"node": one}, values), ({"node": other}, values))


def ask(answer: Answer, *arguments: str) -> Reported:
    with FakePrometheus(answer) as server:
        metrics = ["--set", "provider.metrics=CPU,Memory"]
        return doctor("--provider", "prometheus", "--address", server.url, *metrics, *arguments)


@pytest.mark.slow
def test_a_working_source_passes():
    """So later failures have their own reasons. It has no pods, which are not requested."""
    said = ask(healthy)
    assert 0 == said.exit_code, str(said)
    said.one("cadence", "ok", "samples every 15 s")
    said.one("pods", "skipped", "no series of container_cpu_usage_seconds_total")
    said = ask(healthy, "--set", "refresh.pods=on")
    assert {"pods"} == said.failed()
    said = ask(healthy, "--set", "refresh.pods=off")
    said.one("pods", "skipped", "refresh.pods is off")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (responded("who are you?", status=401), ("401", "provider.token")),
        (responded("you may not", status=403), ("403", "provider.token")),
        (responded("<html>login", headers={"Content-Type": "text/html"}), ("web page", "login page")),
        (
            responded("", status=302, headers={"Location": "https://login.example/?s3cret"}),
            ("login.example", "provider.address"),
        ),
        (responded("not here", status=404), ("404", "provider.address")),
        (responded("{", status=200), ("JSON",)),
    ],
)
def test_a_source_that_refuses_is_reported_with_its_hint(answer: bytes, words: tuple[str, ...]):
    """In the words of the provider, as in serve. The credentials are not shown."""
    said = ask(lambda _: answer, "--set", "provider.token=s3cret")
    assert {"source"} == said.failed()
    said.one("source", "fail", *words)
    assert "s3cret" not in said.output


@pytest.mark.slow
def test_a_source_that_hangs_times_out():
    """After the timeout of the provider."""
    said = ask(lambda _: until_hung_up, "--set", "provider.timeout=0.2s")
    said.one("source", "fail", "no response in time")


@pytest.mark.slow
def test_a_failing_metric_is_reported_beside_the_others():
    """The other metric is checked."""

    def half(asked: Asked) -> bytes:
        return (
            responded('{"status":"error","error":"too heavy"}', status=422)
            if "memory" in asked.query
            else healthy(asked)
        )

    said = ask(half)
    assert {"series"} == said.failed()
    said.one("series", "fail", "Memory: ", "too heavy")
    said.one("series", "ok", "CPU: ")
    said.one("cadence", "ok")


@pytest.mark.slow
def test_a_missing_metric_is_reported_with_the_series_that_exist():
    """The names of similar series, or that the server has none."""
    listed: list[Asked] = []

    def without_memory(asked: Asked) -> bytes:
        if asked.path == "/api/v1/label/__name__/values":
            listed.append(asked)
            return responded('{"status":"success","data":["windows_memory_free","memory_total"]}')
        return vector() if "memory" in asked.query.lower() else healthy(asked)

    said = ask(without_memory, "--set", "provider.token=s3cret")
    memory = said.one("series", "fail", "Memory: no series of any of", "name: memory_total, windows")
    assert 'series with "memory" in the name' in memory.cure
    assert "docs/tasks/prometheus.md" in memory.cure
    assert ["Bearer s3cret"] == [each.headers["authorization"] for each in listed]
    no_names = ask(lambda asked: responded("no", status=404) if "label" in asked.path else without_memory(asked))
    no_names.one("series", "fail", 'the server has no series with "memory" in the name')


@pytest.mark.slow
def test_a_difference_of_clocks_is_reported():
    """From the responses of the source, or from samples in the future."""

    def late(asked: Asked) -> bytes:
        answer = healthy(asked)
        return answer.replace(
            b"Content-Type", f"Date: {formatdate(time.time() - 300, usegmt=True)}\r\nContent-Type".encode(), 1
        )

    assert "NTP" in ask(late).one("clock", "fail", "s behind the clock of load-watcher").cure


@pytest.mark.slow
def test_a_source_that_names_nodes_by_address_is_reported():
    """Without a cluster."""
    said = ask(lambda asked: healthy(asked, nodes="10.1.2.3 node-b"))
    line = said.one("addresses", "fail", "10.1.2.3 (1 of 2 nodes)", "configure the cluster")
    assert "__meta_kubernetes_pod_node_name" in line.cure


# --- Kubernetes ------------------------------------------------------------------------------------------------------


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def kube(server: FakeKube, *arguments: str, token: str | None = None) -> Reported:
    """Run doctor with metrics-server as the source, unless the arguments name another."""
    file = server.kubeconfig(Path("kubeconfig"), token=token)
    return doctor("--provider", "metrics-server", *arguments, env={"KUBE_CONFIG": str(file)})


@pytest.mark.slow
def test_a_working_metrics_server_passes():
    """All nodes have a load."""
    with FakeKube() as server:
        for name in ("node-1", "node-2"):
            server.node(name)
            server.usage(name, time=now())
            server.pod(f"shop/web-of-{name}", node=name)
            server.pod_usage(f"shop/web-of-{name}", ("250m", "1Gi"), time=now())
        said = kube(server, "--address", "http://of-no-use:1")
    assert 0 == said.exit_code, str(said)
    said.one("settings", "warn", "provider.address is set but not used")
    said.one("pods", "ok", "2 pods on 2 nodes", "metrics.k8s.io/v1beta1 pods containers.usage.cpu", "working_set")
    said.one("source", "ok", "KubernetesMetricsServer is accessible")
    said.one("kubernetes", "ok", "2 nodes")
    said.one("permissions", "ok", "list nodes.metrics.k8s.io, list nodes, watch nodes, list pods.metrics.k8s.io")
    said.one("nodes", "ok", "matched by name: node-1, node-2 (2 of 2 nodes)")


@pytest.mark.slow
def test_nodes_without_pod_usage_are_named_with_the_cause():
    """metrics-server has no pod of node-2, on which one runs; none runs on node-3."""
    with FakeKube() as server:
        for name in ("node-1", "node-2", "node-3"):
            server.node(name)
            server.usage(name, time=now())
        for name in ("node-1", "node-2"):
            server.pod(f"shop/web-of-{name}", node=name)
        server.pod_usage("shop/web-of-node-1", ("250m", "1Gi"), time=now())
        said = kube(server)
    said.one("pods", "warn", "no pod usage for 1 of 3 nodes; node-2: metrics-server has no metrics of its pods")


def test_missing_rights_for_metrics_server_are_reported():
    """403 has the verb, the resource and the missing rule; 401 is a different failure."""
    with FakeKube(forbidden={("list", NODE_METRICS)}) as server:
        server.node("node-1")
        said = kube(server)
        stranger = kube(server, token="s3cret")
    line = said.one("source", "fail", "cannot list nodes.metrics.k8s.io (403")
    assert 'apiGroups: ["metrics.k8s.io"]' in line.cure
    missing = said.one("permissions", "fail", "may not list nodes.metrics.k8s.io")
    assert 'resources: ["nodes"], verbs: ["list"]' in missing.cure
    assert "expired" in stranger.one("source", "fail", "401").cure
    assert "s3cret" not in stranger.output


def test_each_missing_right_is_reported():
    """Also if the nodes cannot be listed; without `watch` it works."""
    with FakeKube(forbidden={("list", NODES), ("watch", NODES)}) as server:
        server.node("node-1")
        said = kube(server)
    said.one("kubernetes", "ok", "may not list nodes")
    said.one("permissions", "fail", "may not list nodes; needed for the capacity")
    said.one("permissions", "warn", "may not watch nodes", "once a minute")
    said.one("source", "fail", "403")


def test_an_unauthenticated_account_is_a_failure_of_the_api():
    """Its rights are not checked."""
    with FakeKube() as server:
        said = kube(server, token="s3cret")
    assert {"source", "kubernetes"} == said.failed()
    said.one("permissions", "skipped")
    assert "s3cret" not in said.output


@pytest.mark.slow
def test_missing_rights_for_pods_are_reported_only_if_pods_are_wanted():
    """A warning by default, a failure with refresh.pods = on, and nothing with off."""
    with FakeKube(forbidden={("list", POD_METRICS), ("list", PODS)}) as server:
        server.node("node-1")
        server.usage("node-1", time=now())
        perhaps, wanted, off = (kube(server, "--set", f"refresh.pods={mode}") for mode in ("auto", "on", "off"))
    line = perhaps.one("permissions", "warn", "may not list pods.metrics.k8s.io, list pods; needed")
    assert 2 == line.cure.count('resources: ["pods"]')
    perhaps.one("pods", "skipped", "403", "not needed for nodes")
    assert {"pods", "permissions"} == wanted.failed()
    assert 0 == off.exit_code
    assert not any("pods." in line.what for line in off.of("permissions"))


@pytest.mark.slow
def test_rights_of_the_extender_are_those_of_its_profiles(tmp_path: Path):
    """Nodes and pods, and bindings if a profile has them."""
    plugins = 'plugins = [ { name = "TargetLoadPacking" } ]'
    (tmp_path / "s.toml").write_text(f"[scheduler.one]\n{plugins}\n[scheduler.two]\n{plugins}\nbind = true\n")
    with FakeKube(forbidden={("create", f"{PODS}/binding"), ("watch", PODS)}) as server:
        server.node("node-1")
        server.usage("node-1", time=now())
        said = kube(server, "--config", "s.toml", "--set", "refresh.pods=off")
    assert 'resources: ["pods/binding"]' in said.one("permissions", "fail", "may not create pods/binding").cure
    said.one("permissions", "warn", "may not watch pods; needed for the nodes and pods that the extender")


@pytest.mark.slow
def test_rights_for_node_metrics_are_those_of_writers_and_readers(tmp_path: Path):
    """A writer needs all verbs and a Lease, a reader two verbs."""
    reading = 'plugins = [ { name = "LoadAwareScheduling", args = { nodeMetricSource = "cluster" } } ]'
    (tmp_path / "s.toml").write_text(
        f'[koordinator]\npublish = true\nlease_namespace = "here"\n[scheduler.one]\n{reading}'
    )
    metrics = "slo.koordinator.sh/v1alpha1/nodemetrics"
    with FakeKube(forbidden={("patch", f"{metrics}/status"), ("patch", LEASES), ("watch", metrics)}) as server:
        server.node("node-1")
        server.usage("node-1", time=now())
        said = kube(server, "--config", "s.toml", "--set", "refresh.pods=off")
        asked = [
            about
            for each in server.asked
            if each.resource.endswith("selfsubjectaccessreviews")
            and (about := each.body["spec"]["resourceAttributes"])["resource"] == "leases"
        ]
    responded = "watch nodemetrics.slo.koordinator.sh, patch nodemetrics/status.slo.koordinator.sh, patch leases"
    writing = said.one("permissions", "fail", responded, "writing NodeMetrics")
    assert '{apiGroups: ["slo.koordinator.sh"], resources: ["nodemetrics/status"], verbs: ["patch"]}' in writing.cure
    said.one("permissions", "fail", "may not watch nodemetrics.slo.koordinator.sh; needed for NodeMetrics of the")
    assert [("create", "here", ""), ("get", "here", LEASE), ("patch", "here", LEASE)] == [
        (about["verb"], about["namespace"], about.get("name", "")) for about in asked
    ]


def test_agents_by_label_are_found_or_the_reason_is_reported(tmp_path: Path):
    """The agents in the dashboard, and the necessary rights in their namespace."""
    selection = '{ selector = "app=agent", namespace = "agents" }'
    (tmp_path / "s.toml").write_text(f"[agents]\npods = {selection}\n[qrms]\npods = {selection}\n")
    with FakeKube() as server:
        status = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        server.pod("agents/a", node="node-1", status=status, metadata={"labels": {"app": "agent"}})
        server.pod("agents/b", node="node-2", phase="Pending", metadata={"labels": {"app": "agent"}})
        only = ("--set", "refresh.pods=off", "--only", "dashboard", "--only", "permissions")
        said = kube(server, "--config", "s.toml", *only)
        server.forbidden = {("list", PODS)}
        refused = kube(server, "--config", "s.toml", *only)
        reviews = [each.body["spec"]["resourceAttributes"] for each in server.asked if each.verb == "create"]
    said.one("dashboard", "ok", "1 agent found: node-1 (10.0.0.1:2023)")
    said.one("dashboard", "ok", "1 QoS Resource Manager found: node-1 (10.0.0.1:2024)")
    said.one(
        "dashboard", "warn", "agent, pods with app=agent in agents: 1 of 2 are unavailable", "b on node-2 is Pending"
    )
    refused.one("dashboard", "warn", "agent, pods with app=agent in agents: ", "cannot list pods (403")
    missing = refused.one("permissions", "warn", "may not list pods, ", "the pages of agents in the dashboard")
    assert "on pods in the namespace agents: grant it a Role there" in missing.cure
    assert {"agents"} == {each.get("namespace") for each in reviews if each["resource"] == "pods" and not each["group"]}


def test_a_missing_or_unready_metrics_server_is_reported():
    """404 and 503."""
    with FakeKube(fault=without_metrics(404)) as server:
        said = kube(server)
    assert "Check that metrics-server is installed" in said.one("source", "fail", "404").cure
    with FakeKube(fault=without_metrics(503)) as server:
        said = kube(server)
    assert "kubectl -n kube-system get pods" in said.one("source", "fail", "503").cure


def without_metrics(code: int) -> Fault:
    """Respond with this status to all requests to metrics-server."""
    failure = status_object(code, "the server could not")
    return lambda asked: web.json_response(failure, status=code) if asked.resource == NODE_METRICS else None


def test_a_metrics_server_without_nodes_is_reported():
    """It has just started, or there are no nodes."""
    with FakeKube() as server:
        server.node("node-1")
        said = kube(server)
    assert "series" in said.failed() or "freshness" in said.failed()
    said.one("freshness", "fail", "no node has a sample")
    said.one("series", "fail", "CPU: ", "after its start it needs a minute")


def test_without_access_to_a_cluster_the_settings_are_named():
    """For metrics-server."""
    said = doctor("--provider", "metrics-server")
    assert "KUBE_CONFIG" in said.one("source", "fail", "no access to a Kubernetes API").cure
    said.one("kubernetes", "skipped")


@pytest.mark.slow
def test_settings_that_need_a_cluster_are_reported_without_one(source: list[str]):
    """Names of nodes only if they are configured."""
    said = doctor(*source)
    said.one("kubernetes", "skipped")
    said = doctor(*source, "--set", "kubernetes.node_names=on")
    assert {"kubernetes"} == said.failed()
    assert "KUBE_CONFIG" in said.one("kubernetes", "fail", "for the names of the nodes").cure


def test_an_unreachable_api_is_reported():
    """With the message of the system."""
    with FakeKube() as server:
        file = server.kubeconfig(Path("kubeconfig"))
    said = doctor("--provider", "metrics-server", env={"KUBE_CONFIG": str(file)})
    for check in ("source", "kubernetes"):
        assert said.one(check, "fail").what.endswith(": Connection refused")


@pytest.mark.slow
def test_names_of_the_source_are_compared_with_the_cluster():
    """Addresses and host names that match a node are reported with the evidence; machines outside are named, and so are
    nodes without samples."""
    with FakeKube() as server:
        address = [{"type": "InternalIP", "address": "10.0.0.7"}]
        server.put(NODES, "node-1", status={"addresses": address})
        server.node("node-2")
        said = ask_with_cluster(server, "10.0.0.7:9100 nodd-2")
    assert 0 == said.exit_code, str(said)
    said.one("nodes", "ok", "matched by InternalIP: node-1 (1 of 2 nodes)")
    said.one("samples", "warn", "1 of 2 series are of machines that are not nodes of the cluster", "nodd-2")
    said.one("nodes", "warn", "no samples of these nodes: node-2 (1 of 2 nodes)")
    said.one("addresses", "ok", "node-1")
    said.one("permissions", "ok", "list nodes, watch nodes")


@pytest.mark.slow
def test_it_is_reported_if_no_name_of_the_source_is_a_node():
    """With both names; if the mapping is off, with its possible result."""
    with FakeKube() as server:
        server.put(NODES, "node-1", status={"addresses": [{"type": "InternalIP", "address": "10.0.0.7"}]})
        strangers = ask_with_cluster(server, "apple pear")
        off = ask_with_cluster(server, "10.0.0.7 10.0.0.8", "--set", "kubernetes.node_names=off")
    line = strangers.one("nodes", "fail", "names of the source: apple, pear; nodes of the cluster: node-1")
    assert "provider.node_label" in line.cure
    assert "same cluster" in line.cure
    assert "ignore this if" in strangers.one("nodes", "warn", "apple is not a name").cure
    assert "kubernetes.node_names" in off.one("nodes", "fail", "names of the source: 10.0.0.7, 10.0.0.8").cure
    off.one("nodes", "warn", "10.0.0.7 is node node-1 (by its InternalIP)")
    off.one("permissions", "skipped")


@pytest.mark.slow
def test_this_host_with_another_name_than_its_node_is_reported():
    """In a pod with a NODE_NAME that the cluster does not have."""
    with FakeKube() as server:
        server.node("node-1")
        server.node("node-2")
        environ = {"KUBE_CONFIG": str(server.kubeconfig(Path("kubeconfig")))}
        wrong = of_this_host(env=environ | {"NODE_NAME": "node-9"})
        right = of_this_host(env=environ | {"NODE_NAME": "node-1"})
    assert "spec.nodeName" in wrong.one("nodes", "fail", "names of the source: node-9").cure
    assert ("ok",) == tuple(line.status for line in right.of("nodes"))


def ask_with_cluster(server: FakeKube, nodes: str, *arguments: str) -> Reported:
    """Run doctor with a Prometheus that has these nodes."""
    file = server.kubeconfig(Path("kubeconfig"))
    return ask(lambda asked: healthy(asked, nodes=nodes), "--set", f"kubernetes.kubeconfig={file}", *arguments)


def test_the_web_page_of_a_proxy_instead_of_a_cluster_is_reported():
    with FakeKube(fault=lambda _: web.Response(text="<html>", content_type="text/html")) as server:
        said = kube(server)
    said.one("kubernetes", "fail", "a web page", "server address")
