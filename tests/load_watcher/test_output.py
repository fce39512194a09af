"""The output of commands: JSON of all commands that print facts, errors, completion, and a closed pipe."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from load_watcher import main
from watcher.service.settings.tables import KEYS
from watcher.store.tables import REVISIONS

REPOSITORY = Path(__file__).parents[2]
WITHOUT_FACTS = {"serve", "demo", "agent demo", "extender", "qrm", "help", "version"}


def run(*arguments: str, **more: Any) -> Result:
    return CliRunner().invoke(main.main, arguments, prog_name="load-watcher", **more)


def commands(group: click.Group = main.main, above: str = "") -> dict[str, click.Command]:
    found = {}
    for name, command in group.commands.items():
        found[f"{above}{name}"] = command
        if isinstance(command, click.Group):
            found |= commands(command, f"{above}{name} ")
    return found


@pytest.mark.parametrize(
    "name", sorted(set(commands()) - WITHOUT_FACTS - {"config", "db", "forecast", "koordinator", "marks", "top"})
)
def test_output_selects_the_format_in_each_command(name: str) -> None:
    (option,) = (each for each in commands()[name].params if each.name == "output")
    assert ["-o", "--output"] == option.opts
    assert isinstance(option.type, click.Choice)
    assert ["text", "json"] == list(option.type.choices)[:2]


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_list_of_commands_truncates_no_sentence(name: str) -> None:
    short = commands()[name].short_help or ""
    assert commands()[name].hidden or (0 < len(short) <= 45 and short.endswith("."))


def test_a_file_after_output_names_the_option_for_files() -> None:
    result = run("record", "-o", "trace.csv.gz")
    assert 2 == result.exit_code
    assert "is a format (text, json), given 'trace.csv.gz'; to name a file, use --file trace.csv.gz" in result.stderr
    assert "is not one of" in run("record", "-o", "xml").stderr


def test_settings_as_json() -> None:
    result = run(
        "config", "show", "--port", "7", "--set", "provider.token=s3cret", "--set", "agent.port=8", "-o", "json"
    )
    assert 0 == result.exit_code, result.output
    shown = {each["key"]: each for each in json.loads(result.stdout)["settings"]}
    assert [*KEYS, "agent"] == list(shown)
    assert {"key": "server.port", "value": 7, "origin": "flag --port"} == shown["server.port"]
    assert {"key": "server.tls_cert", "value": None, "origin": "default"} == shown["server.tls_cert"]
    assert {"port": 8} == shown["agent"]["value"]
    assert "s3cret" not in result.output


@pytest.mark.parametrize("place", [["x.toml"], ["--config", "x.toml"]])
def test_settings_are_checked_by_an_argument_or_by_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.toml").write_text("[server]\nport = 1\n[agent]\nhosst = 2\n")
    result = run("config", "check", *place, "-o", "json")
    assert 2 == result.exit_code
    document = json.loads(result.stdout)
    assert (False, []) == (document["valid"], document["notices"])
    (problem,) = document["problems"]
    assert ["key", "message", "cure"] == list(problem)
    assert "agent.hosst" == problem["key"]
    Path("x.toml").write_text("[server]\nport = 1\n")
    assert {"valid": True, "problems": [], "notices": []} == json.loads(
        run("config", "check", *place, "-o", "json").stdout
    )
    assert "remove one of them" in run("config", "check", "x.toml", "--config", "x.toml").stderr


def test_environment_and_flags_are_checked_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fix is in the syntax of its source, also for tables of other packages."""
    monkeypatch.chdir(tmp_path)
    assert (0, "ok\n") == ((good := run("config", "check")).exit_code, good.stdout)
    environ = {"LOAD_WATCHER_REFRESH_WINDOWS": "5x", "LOAD_WATCHER_AGENT_INTERVAL": "5x"}
    result = run("config", "check", "--interval", "0s", "--set", "qrm.watcher=x", env=environ)
    assert 2 == result.exit_code
    for fix in (
        'fix: for example LOAD_WATCHER_REFRESH_WINDOWS=\'["5m", "10m", "15m"]\'',
        "fix: for example LOAD_WATCHER_AGENT_INTERVAL=10s",
        "fix: for example --interval 1m",
        "fix: for example --set qrm.watcher=http://load-watcher.kube-system:2020",
    ):
        assert fix in result.stderr
    Path("load-watcher.toml").write_text("[agent]\ninterval = 0\n")
    assert 'fix: for example agent.interval = "10s"' in run("config", "check").stderr


def test_the_database_as_json(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"

    def reported(command: str) -> dict[str, Any]:
        result = run("db", command, "--store-url", url, "-o", "json")
        assert 0 == result.exit_code, result.output
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    newest = {"database": f"{tmp_path}/x.db", "newest_schema": REVISIONS[-1]}
    assert {**newest, "schema": None} == reported("current")
    assert {**newest, "schema": REVISIONS[-1], "schema_before": None} == reported("upgrade")
    assert {**newest, "schema": REVISIONS[-1]} == reported("current")
    vacuumed = reported("vacuum")
    assert vacuumed["bytes_after"] <= vacuumed["bytes_before"]
    failed = run("db", "copy", "--from", "sqlite:///none.db", "--to", url, "-o", "json")
    assert (1, "") == (failed.exit_code, failed.stdout)
    assert "has nothing to copy" in json.loads(failed.stderr)["error"]["message"]


def test_bad_settings_as_json() -> None:
    result = run("db", "current", "--set", "store.url=x", "-o", "json")
    assert (2, "") == (result.exit_code, result.stdout)
    error = json.loads(result.stderr)["error"]
    assert "1 problem in the settings" == error["message"]
    assert "store.url" == error["problems"][0]["key"]


# --- services that do not answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("why", "shop/web"), ("shadow",), ("compare", "--with", "http://127.0.0.1:1")])
def test_an_unreachable_service_is_an_error_in_plain_text(tmp_path: Path, command: tuple[str, ...]) -> None:
    """If the machine has a kubeconfig, with the way to reach a service in the cluster."""
    alone = {"HOME": str(tmp_path), "KUBECONFIG": "", "LOAD_WATCHER_URL": "http://127.0.0.1:1"}
    result = run(*command, env=alone)
    assert 2 == result.exit_code
    assert "the connection failed: Connection refused" in result.stderr
    assert "ssl:default" not in result.stderr
    assert "kubectl" not in result.stderr
    with_cluster = run(*command, env={**alone, "KUBECONFIG": "/some/file"})
    assert "kubectl -n load-watcher port-forward service/load-watcher 2020" in with_cluster.stderr
    in_pod = run(*command, "-o", "json", env={**alone, "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert "http://load-watcher.load-watcher:2020" in json.loads(in_pod.stderr)["error"]["hint"]


@pytest.mark.parametrize("name", ["agent", "qrm", "extender"])
def test_node_processes_get_the_address_from_the_environment_too(name: str) -> None:
    result = run(name, env={"LOAD_WATCHER_URL": "load-watcher:2020"})
    assert 2 == result.exit_code
    assert "env var: 'LOAD_WATCHER_URL'" in result.stderr
    assert "for example http://load-watcher:2020" in result.stderr


def test_yaml_errors_name_the_line_of_the_file() -> None:
    result = run("score", "-", input="a: 1\n---\nkind: Pod\nx: [1\n")
    assert 2 == result.exit_code
    assert "line 5, column 1: did not find expected ',' or ']'" in result.stderr


def test_version_and_help_have_their_usual_forms() -> None:
    assert run("version").stdout == run("-V").stdout == run("--version").stdout
    assert run("help", "db", "copy").stdout == run("db", "copy", "--help").stdout
    assert run("help").stdout == run("--help").stdout
    assert "No such command 'copi'" in run("help", "db", "copi").stderr


# --- the shell -------------------------------------------------------------------------------------------------------

COMPLETIONS = {
    "bash": """
eval "$(_LOAD_WATCHER_COMPLETE=bash_source load-watcher)"
complete -p load-watcher | grep -q _load_watcher_completion || exit 3
COMP_WORDS=(load-watcher db cu); COMP_CWORD=2
_load_watcher_completion load-watcher cu db
echo "${COMPREPLY[@]}"
""",
    "zsh": """
autoload -Uz compinit; compinit -u -D
eval "$(_LOAD_WATCHER_COMPLETE=zsh_source load-watcher)"
[[ ${_comps[load-watcher]} == _load_watcher_completion ]] || exit 3
compadd() { print -l -- "$@" }
_describe() { eval 'print -l -- "${'$3'[@]}"' }
words=(load-watcher db cu); CURRENT=3
_load_watcher_completion
""",
    "fish": """
_LOAD_WATCHER_COMPLETE=fish_source load-watcher | source
complete -C 'load-watcher db cu'
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", sorted(COMPLETIONS))
def test_completion_works_in_the_shell(tmp_path: Path, shell: str) -> None:
    """As `load-watcher --help` describes it."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert "_LOAD_WATCHER_COMPLETE=bash_source" in run("--help").stdout
    program = tmp_path / "load-watcher"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m load_watcher "$@"\n')
    program.chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "HOME": str(tmp_path),
    }
    flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *flags, "-c", COMPLETIONS[shell]],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    assert "current" in done.stdout
    assert "upgrade" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", ["config show", "doctor", "help simulate"])
def test_a_reader_that_stops_reading_causes_no_traceback(tmp_path: Path, command: str) -> None:
    line = f"{sys.executable} -m load_watcher {command} | true"
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert "" == done.stderr


@pytest.mark.slow
def test_interrupting_a_command_causes_no_traceback(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [
        sys.executable,
        "-u",
        "-m",
        "load_watcher",
        "doctor",
        "--provider",
        "prometheus",
        "--address",
        "http://192.0.2.1",
    ]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as doctor:
        assert doctor.stdout is not None
        assert doctor.stdout.readline().startswith("ok      settings")  # it waits for a source that never responds
        doctor.send_signal(signal.SIGINT)
        _, said = doctor.communicate(timeout=60)
    assert "Traceback" not in said
    assert 0 != doctor.returncode
