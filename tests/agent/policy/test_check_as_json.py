"""`load-watcher agent --check DIRECTORY -o json`."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from load_watcher import main
from tests.agent.policy.writing import node_qos, text_of, throttling


def check(directory: Path) -> Result:
    return CliRunner().invoke(main.main, ["agent", "--check", str(directory), "-o", "json"], prog_name="load-watcher")


def test_policies_as_json(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(text_of(node_qos(), throttling()))
    good = json.loads(check(tmp_path).stdout)
    assert (True, 2, []) == (good["valid"], good["policies"], good["problems"])
    (tmp_path / "bad.yaml").write_text("a: [")
    bad = check(tmp_path)
    assert 2 == bad.exit_code
    assert "bad.yaml" in json.loads(bad.stdout)["problems"][0]
