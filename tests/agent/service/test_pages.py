"""The command of the agent: its output, invalid settings, and remaining values at the end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.audit.log import AuditEntry, AuditOutcome
from agent.decision.explanation import measured
from agent.executor.plan_run import TAINTED_KEY
from agent.service.dependencies import open_audit
from agent.service.settings import AgentSettings
from load_watcher.main import main
from tests.real.parts import REPOSITORY

NOW = 1_700_000_000.0


def test_audit_entries_are_lines_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    audit = open_audit(AgentSettings(state_file=tmp_path / "agent.db", audit_to_stdout=True))
    audit.finish(audit.begin(AuditEntry(time=NOW, kind="scheduling")), AuditOutcome.DONE, now=NOW)
    audit.close()
    lines = capsys.readouterr().out.splitlines()
    assert ["begun", "done"] == [json.loads(line)["audit"]["outcome"] for line in lines]


def test_the_documented_audit_line_has_the_keys_and_texts_of_a_real_one():
    page = (REPOSITORY / "docs" / "concepts" / "agent-safety.md").read_text()
    (shown,) = [json.loads(line)["audit"] for line in page.splitlines() if line.startswith('{"audit"')]
    assert shown == json.loads(json.dumps(AuditEntry(**shown).as_json()))
    assert list(shown) == list(AuditEntry(time=NOW, kind="throttle").as_json())
    assert measured("cpu_total_usage", 6572.0, 6400.0) == shown["reason"]


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_an_invalid_token_file_is_reported(tmp_path: Path, content: bytes | None):
    """Also one that was removed after the settings were checked."""
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    (tmp_path / "policies").mkdir()
    places = {"policies": tmp_path / "policies", "state_file": tmp_path / "agent.db", "watcher_token_file": token}
    flags = [f"--set=agent.{name}={path}" for name, path in places.items()]
    refused = CliRunner().invoke(main, ["agent", "--once", *flags, "--set=agent.watcher=http://127.0.0.1:9"])
    assert refused.exit_code in (1, 2)
    assert isinstance(refused.exception, SystemExit)
    assert str(token) in refused.stderr


@pytest.mark.parametrize("content", [None, "kind: NodeQOS\n"])
def test_once_without_policies_fails(tmp_path: Path, content: str | None):
    policies = tmp_path / "policies"
    if content is not None:
        policies.mkdir()
        (policies / "all.yaml").write_text(content)
    flags = [f"--set=agent.{each}" for each in (f"state_file={tmp_path / 'agent.db'}", "interval=0.2", "kubernetes=no")]
    looked = CliRunner().invoke(main, ["agent", "--once", "--policies", str(policies), *flags])
    assert looked.exit_code == 2
    assert str(policies) in looked.stderr
    assert "no valid policies: no decisions made" in looked.stderr


def test_an_error_in_json_has_its_hint():
    refused = CliRunner().invoke(main, ["agent", "--once", "-o", "json", "--set=agent.kubernetes=no"])
    (line,) = refused.stderr.splitlines()
    error = json.loads(line)["error"]
    assert (refused.exit_code, error["message"]) == (1, "policies cannot be read: no Kubernetes API is configured")
    assert error["hint"].startswith("pass a directory with --policies DIR")


@pytest.mark.parametrize("arguments", [["--output", "json"], ["--help"]])
def test_an_option_in_place_of_the_path_of_check_is_refused(arguments: list[str]):
    refused = CliRunner().invoke(main, ["agent", "--check", *arguments])
    assert refused.exit_code == 2
    assert f"Error: --check requires a PATH, but the option {arguments[0]} follows" in refused.stderr


HEAVY = ("numpy", "sqlalchemy", "requests", "psutil", "zstandard", "grpc", "google.protobuf", "rich", "scorers")
LOADED = """
import sys
from load_watcher.main import main
try:
    main(sys.argv[2:])
except SystemExit as ended:
    print(ended.code, sorted(set(sys.argv[1].split()) & sys.modules.keys()))
"""


def test_unneeded_modules_are_not_imported():
    """The agent runs on each node, and NumPy alone needs 15 MB."""
    checked = ["agent", "--check", str(REPOSITORY / "deploy" / "agent" / "policies")]
    command = [sys.executable, "-c", LOADED, " ".join(HEAVY), *checked]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=120)
    assert ended.stdout.splitlines()[-1] == "0 []", ended.stderr


@pytest.mark.parametrize("flags", [["--preview", "--enforce"], ["--enforce", "--preview"]])
def test_preview_and_enforce_together_are_refused(flags: list[str]):
    refused = CliRunner().invoke(main, ["agent", *flags])
    assert refused.exit_code == 2
    assert "--preview and --enforce are mutually exclusive" in refused.stderr


def test_restore_reports_a_taint_that_it_cannot_remove_without_the_api(tmp_path: Path):
    settings = AgentSettings(state_file=tmp_path / "agent.db")
    audit = open_audit(settings)
    audit.save_value(TAINTED_KEY, True)
    audit.close()
    flags = ["--set=agent.node=node-1", "--set=agent.kubernetes=false"]
    restored = CliRunner().invoke(main, ["agent", "restore", "--state-file", str(settings.state_file), *flags])
    assert restored.exit_code == 1
    assert "kubectl taint node node-1 interference.crane.io-" in restored.stderr
    assert "no recorded values" not in restored.stdout


def test_restore_on_a_node_without_an_audit_file(tmp_path: Path):
    command = ["agent", "restore", "--state-file", str(tmp_path / "agent.db")]
    refused = CliRunner().invoke(main, command)
    assert (refused.exit_code, "with --state-file, or use --missing-ok" in refused.stderr) == (1, True)
    ended = CliRunner().invoke(main, [*command, "--missing-ok"])
    assert (ended.exit_code, "no agent has run on this node" in ended.stdout) == (0, True)
    assert not (tmp_path / "agent.db").exists()
