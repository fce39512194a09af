"""The command line: its output, its exit codes, and its start time."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import watcher
from load_watcher import main
from tests.waiting import wait_for
from watcher.service.settings.tables import KEYS

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, **more: CliRunner().invoke(main.main, arguments, prog_name="load-watcher", **more)


def test_version(run):
    """--version prints the name and the version, and in a checkout the commit."""
    result = run("--version")
    line = rf"load-watcher {re.escape(watcher.__version__)}( \(commit [0-9a-f]{{12,40}}(-dirty)?\))?\n"
    assert (result.exit_code, bool(re.fullmatch(line, result.stdout))) == (0, True), result.stdout
    if (REPOSITORY / ".git").exists() and shutil.which("git"):
        assert "commit" in result.stdout


@pytest.mark.parametrize(
    "command",
    [
        "serve",
        "demo",
        "doctor",
        "compare",
        "simulate",
        "config check",
        "config show",
        "db upgrade",
        "db current",
        "db vacuum",
        "db copy",
        "record",
        "report",
        "score",
        "why",
        "shadow",
        "agent",
        "agent restore",
        "qrm",
        "qrm restore",
    ],
)
def test_each_command_has_help(run, command):
    """--help of each command prints its use and at least one sentence."""
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"Usage: load-watcher {command}" in result.stdout
    group, _, name = command.rpartition(" ")
    assert name in run(*group.split(), "--help").stdout


def test_serve_has_the_flags_that_the_settings_name(run):
    """An origin like "flag --port" names an option that exists, and each sets its own key."""
    named = {key.setting.kind.flag: name for name, key in KEYS.items() if key.setting.kind.flag}
    values = {
        "server.host": "::1",
        "server.port": "7",
        "provider.name": "prometheus",
        "provider.address": "http://p:1",
        "provider.trace": __file__,
        "provider.speed": "24",
        "refresh.interval": "40s",
        "store.url": "sqlite:///x.db",
        "log.level": "error",
        "log.format": "json",
    }
    assert set(named.values()) == set(values)
    flags = [text for flag, key in named.items() for text in (flag, values[key])]
    result = run("config", "show", *flags)
    assert result.exit_code == 0, result.output
    for flag in named:
        assert re.search(rf"^\w+ = .* # from flag {flag}$", result.stdout, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--set", "refresh.max_staleness=2m"], 'max_staleness = "2m" # from flag --set refresh.max_staleness'),
        (["--set", "provider.headers=A=b"], 'headers = { "A" = "<hidden>" } # from flag --set provider.headers'),
        (["--set", "server.port=1", "--set", "server.port=2"], "port = 2 # from flag --set server.port"),
        (["--set", "server.port=1", "--port", "3"], "port = 3 # from flag --port"),
        (["-v"], 'level = "debug" # from flag --log-level'),
        (["-v", "--log-level", "error"], 'level = "error" # from flag --log-level'),
    ],
)
def test_config_show_prints_the_effective_settings(run, arguments, line):
    """It takes the flags of serve."""
    result = run("config", "show", *arguments)
    assert result.exit_code == 0, result.output
    assert line in {" ".join(each.split()) for each in result.stdout.splitlines()}


def test_config_show_reads_the_environment(run):
    """The process's own environment counts."""
    result = run("config", "show", env={"LOAD_WATCHER_SERVER_PORT": "77"})
    assert "# from environment LOAD_WATCHER_SERVER_PORT" in result.stdout


@pytest.mark.parametrize("bad", ["refresh.interval", "=5", ""])
def test_set_needs_a_key_and_a_value(run, bad):
    """An invalid argument is refused without being repeated."""
    result = run("serve", "--set", bad)
    assert result.exit_code == 2
    assert "section.key=value" in result.stderr


def test_config_check_accepts_a_valid_file(run, tmp_path):
    """With the results of the agent and the QoS Resource Manager."""
    (tmp_path / "x.toml").write_text("[server]\nport = 1\n[agent]\nport = 2\n[qrm]\nport = 3")
    result = run("config", "check", "x.toml")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize("section", ["agent", "qrm"])
def test_config_check_reads_the_tables_of_all_packages(run, tmp_path, section):
    (tmp_path / "x.toml").write_text(f"[{section}]\nhosst = 2")
    result = run("config", "check", "x.toml")
    assert result.exit_code == 2
    assert f"did you mean {section}.host?" in result.stderr


def test_config_check_compares_plugins_with_the_windows(run, tmp_path):
    """A percentile over a window that is not kept would never be available."""
    args = '{ aggregated = { scoreAggregationType = "p95", scoreAggregatedDuration = "30m" } }'
    profile = f'[scheduler.default]\nplugins = [ {{ name = "LoadAwareScheduling", args = {args} }} ]\n'
    (tmp_path / "x.toml").write_text(profile)
    result = run("config", "check", "x.toml")
    assert result.exit_code == 2
    assert "scheduler.default.plugins[0].args.aggregated.scoreAggregatedDuration" in result.stderr
    assert "'30m' is not served; served windows: 5m, 10m, 15m" in result.stderr
    (tmp_path / "x.toml").write_text(f'[refresh]\nwindows = ["5m", "30m"]\n{profile}')
    assert run("config", "check", "x.toml").exit_code == 0


def test_config_check_names_profiles_that_need_sufficient_requests(run, tmp_path):
    profile = '[scheduler.default]\nplugins = [ {{ name = "LoadVariationRiskBalancing", args = {{ {} }} }} ]\n'
    (tmp_path / "x.toml").write_text(profile.format(""))
    result = run("config", "check", "x.toml")
    assert (result.exit_code, result.stdout) == (0, "ok\n")
    assert (
        "note: scheduler.default: LoadVariationRiskBalancing with these arguments overloads more nodes" in result.stderr
    )
    assert "if pods request less than about half of their usage" in result.stderr
    (tmp_path / "x.toml").write_text(profile.format('formula = "kep"'))
    assert run("config", "check", "x.toml").stderr == ""


def test_config_check_leaves_the_windows_of_a_separate_extender_to_its_watcher(run, tmp_path):
    """The windows of [refresh] are not those of the watcher."""
    args = '{ aggregated = { scoreAggregationType = "p95", scoreAggregatedDuration = "30m" } }'
    profile = f'[scheduler.default]\nplugins = [ {{ name = "LoadAwareScheduling", args = {args} }} ]\n'
    (tmp_path / "x.toml").write_text(f'[extender]\nwatcher = "http://localhost:2020"\n{profile}')
    result = run("config", "check", "x.toml")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "ok\n", "")
    assert run("serve", "--config", "x.toml", "--port", "0").exit_code == 2
    more = profile.replace("plugins = [ ", 'plugins = [ { name = "LowRiskOverCommitment" }, ')
    (tmp_path / "x.toml").write_text(f'[extender]\nwatcher = "http://localhost:2020"\n{more}')
    assert "note: scheduler.default: LowRiskOverCommitment" in run("config", "check", "x.toml").stderr


@pytest.mark.parametrize(
    "plugin",
    [
        '{ name = "TargetLoadPacking", args = { resources = ["cpu", "memory", "gpu"] } }',
        '{ name = "LoadAwareScheduling", args = { usageThresholds = { "nvidia.com/gpu" = 80 } } }',
    ],
)
def test_config_check_names_plug_ins_that_use_gpus_if_gpus_are_not_measured(run, tmp_path, plugin):
    profile = f"[scheduler.default]\nplugins = [ {plugin} ]\n"
    (tmp_path / "x.toml").write_text(profile)
    result = run("config", "check", "x.toml")
    assert (result.exit_code, result.stdout) == (0, "ok\n")
    assert "uses the load of GPUs, which is not measured; add GPU to provider.metrics" in result.stderr
    (tmp_path / "x.toml").write_text(f'{profile}[provider]\nmetrics = ["CPU", "Memory", "GPU"]\n')
    assert run("config", "check", "x.toml").stderr == ""
    (tmp_path / "x.toml").write_text(f'{profile}[extender]\nwatcher = "http://load-watcher:2020"\n')
    assert run("config", "check", "x.toml").stderr == ""


BAD_FILE = '[server]\nport = -1\nprot = 1\n[provider]\nname = "prometheus"\ntoken = ["s3cret"]'


@pytest.mark.parametrize(
    "command",
    [["config", "check"], ["config", "show", "--config"], ["serve", "--config"], ["db", "upgrade", "--config"]],
)
def test_invalid_settings_end_each_command_with_all_problems(run, tmp_path, command):
    """Exit code 2, each problem with key and remedy on standard error; nothing else is done."""
    (tmp_path / "x.toml").write_text(BAD_FILE)
    result = run(*command, "x.toml")
    assert (result.exit_code, result.stdout) == (2, "")
    for text in ("server.port: must be a whole number", "server.prot: unknown setting", "did you mean server.port?"):
        assert text in result.stderr
    assert "provider.token: must be text" in result.stderr
    assert result.stderr.count("fix:") >= 3
    assert "s3cret" not in result.stderr
    assert os.listdir(tmp_path) == ["x.toml"]


@pytest.mark.parametrize(
    ("arguments", "environ", "given", "cure"),
    [
        (["report", "--prometheus", "x:1"], {}, "flag --prometheus", "--prometheus http://"),
        (
            ["report"],
            {"LOAD_WATCHER_PROVIDER_ADDRESS": "x:1"},
            "environment LOAD_WATCHER_PROVIDER_ADDRESS",
            "LOAD_WATCHER_PROVIDER_ADDRESS=http://",
        ),
        (["qrm", "--mode", "x"], {}, "flag --mode", "--mode dry-run"),
        (["agent", "--port", "99999"], {}, "flag --port", "--port 2021"),
    ],
)
def test_an_invalid_value_of_an_option_names_the_option(run, arguments, environ, given, cure):
    """Also where the option of a key has another name in other commands, or none."""
    result = run(*arguments, env=environ)
    assert result.exit_code == 2
    assert f"({given})" in result.stderr
    assert f"for example {cure}" in result.stderr


def test_a_missing_file_is_a_problem(run):
    """For config check."""
    result = run("config", "check", "nowhere.toml")
    assert result.exit_code == 2
    assert "cannot read nowhere.toml: No such file or directory" in result.stderr


def test_db_upgrade_current_and_vacuum(run, tmp_path):
    """upgrade creates the configured database, current and vacuum use it."""
    url = ["--store-url", f"sqlite:///{tmp_path}/x.db"]
    assert "does not exist yet" in run("db", "current", *url).stdout
    assert run("db", "upgrade", *url).exit_code == 0
    assert (tmp_path / "x.db").exists()
    for command in ("current", "vacuum"):
        result = run("db", command, *url)
        assert result.exit_code == 0, result.output
        assert "x.db" in result.stdout


def test_db_commands_need_no_source(run):
    """For example in an init container that only upgrades the database."""
    result = run("db", "current", env={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert result.exit_code == 0, result.output


def test_an_unusable_database_ends_a_command_with_a_remedy(run, tmp_path):
    """A message on standard error and exit code 1, without a traceback."""
    (tmp_path / "x.db").write_bytes(b"no database at all, but long enough to look like something" * 100)
    result = run("db", "upgrade", "--store-url", "sqlite:///x.db")
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("load-watcher: ")


def _python(*arguments, cwd):
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_exit_code_is_that_of_the_process(tmp_path):
    """2 for an invalid file and 0 for a valid one."""
    (tmp_path / "bad.toml").write_text(BAD_FILE)
    (tmp_path / "good.toml").write_text("[server]\nport = 0")
    bad = _python("-m", "load_watcher", "config", "check", "bad.toml", cwd=tmp_path)
    good = _python("-m", "load_watcher", "config", "check", "good.toml", cwd=tmp_path)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "server.prot" in bad.stderr
    assert (good.returncode, good.stdout, good.stderr) == (0, "ok\n", "")


def test_heavy_modules_are_not_imported_before_a_command_runs(tmp_path):
    """--help and mistyped commands respond at once, because they load neither the settings nor these libraries."""
    heavy = "watcher.model msgspec numpy sqlalchemy alembic aiohttp requests rich psutil apscheduler prometheus_client"
    program = f"import sys, load_watcher.main; print(*sorted(set(sys.modules) & set({heavy.split()})))"
    assert _python("-c", program, cwd=tmp_path).stdout == "\n"


def test_serve_logs_its_source_and_reopens_its_log(run_service):
    """The log has the provider with the reason. After SIGHUP it has the format of the file, and after SIGHUP with an
    invalid file the format does not change."""
    service = run_service(config="[agent]\nport = 1\n")
    assert "provider of samples: host (provider.name is not set; the default outside a cluster)" in service.log()

    def renewed(config):
        service.config_file.write_text(config)
        before = len(service.log())
        os.kill(service.pid, signal.SIGHUP)
        wait_for(lambda: re.search(r"reloaded.*\n", service.log()[before:]), what="the reload to be logged")
        (line,) = [line for line in service.log()[before:].splitlines() if "reloaded" in line]
        return json.loads(line)

    assert renewed('[log]\nformat = "json"\n')["level"] == "info"
    assert "log.format: must be" in renewed('[log]\nformat = "yaml"\n')["message"]


@pytest.mark.parametrize("command", [("why", "shop/web"), ("shadow",), ("score", "docs/examples/pod.yaml")])
def test_the_address_of_the_service_may_be_in_the_environment(run, monkeypatch, command):
    monkeypatch.setenv("LOAD_WATCHER_URL", "http://127.0.0.1:9")
    name, *arguments = command
    result = run(name, *(str(REPOSITORY / each) if "." in each else each for each in arguments))
    assert result.exit_code == 2
    assert "no response from http://127.0.0.1:9/" in result.stderr
