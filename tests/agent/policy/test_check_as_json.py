"""`load-watcher agent --check DIRECTORY -o json`."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from load_watcher import main
from tests.agent.policy.writing import a_rule, node_qos, text_of, throttling


def check(directory: Path) -> Result:
    return CliRunner().invoke(main.main, ["agent", "--check", str(directory), "-o", "json"], prog_name="load-watcher")


def test_policies_as_json(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(text_of(node_qos(), throttling()))
    good = json.loads(check(tmp_path).stdout)
    assert (True, 2, []) == (good["valid"], good["policies"], good["problems"])
    assert good["rules"], "each rule has a sentence"
    (tmp_path / "bad.yaml").write_text("a: [")
    bad = check(tmp_path)
    assert 2 == bad.exit_code
    assert "bad.yaml" in json.loads(bad.stdout)["problems"][0]


def test_each_rule_has_a_sentence_with_its_effects(tmp_path: Path) -> None:
    rules = [
        a_rule(name="fleet", metricRule={"name": "cpu_total_utilization", "value": "75"}),
        a_rule(name="pressure", metricRule={"name": "psi_cpu_some_avg10", "value": "20"}),
    ]
    (tmp_path / "all.yaml").write_text(text_of(node_qos(*rules), throttling()))
    result = CliRunner().invoke(main.main, ["agent", "--check", str(tmp_path)], prog_name="load-watcher")
    lines = result.stdout.splitlines()
    assert "above 75 of cpu_total_utilization, keeps new pods away, throttles until the gap is closed" in result.stdout
    assert any(
        "psi_cpu_some_avg10" in line
        and line.endswith("does not throttle, because that does not reduce psi_cpu_some_avg10")
        for line in lines
    )
