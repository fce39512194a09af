"""The shipped CustomResourceDefinitions match the fields that are read and accept the shipped policies."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.executor.enforcement_switch import read_control
from agent.policy.crds import RESOURCES, definition, definitions
from tests.agent.policy.writing import a_rule, an_object, node_qos
from tests.schemas import draft202012

SHIPPED = Path(__file__).parents[3] / "deploy" / "agent"


def schema_of(kind: str) -> dict[str, Any]:
    """The schema of a kind, which prunes unknown fields silently."""
    (row,) = (each for each in RESOURCES if each[0] == kind)
    (version,) = definition(*row)["spec"]["versions"]
    return _closed(copy.deepcopy(version["schema"]["openAPIV3Schema"]))


def _closed(schema: Any) -> Any:
    """The schema without additional properties, as with pruning, except in metadata, which the server defines."""
    if isinstance(schema, dict):
        if "properties" in schema:
            schema["additionalProperties"] = False
        for value in schema.values():
            _closed(value)
    return schema


def test_the_shipped_file_is_generated_from_the_fields():
    assert definitions() == (SHIPPED / "crds.yaml").read_text(), "run: python -m agent.policy.crds"


def test_only_definitions_of_the_group_of_load_watcher_are_shipped():
    """Crane's definitions belong to Crane."""
    found = [each["spec"]["group"] for each in yaml.safe_load_all(definitions())]
    assert ["load-watcher.io"] * 3 == found


def test_each_node_of_a_schema_has_a_type():
    """A structural schema requires it, except for fields that accept any value."""

    def check(schema: dict[str, Any], path: str) -> None:
        free = {"x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"} & schema.keys()
        assert "type" in schema or free, path
        for name, inner in schema.get("properties", {}).items():
            check(inner, f"{path}.{name}")
        for name in ("items", "additionalProperties"):
            if isinstance(schema.get(name), dict):
                check(schema[name], f"{path}[]")

    for row in RESOURCES:
        check(definition(*row)["spec"]["versions"][0]["schema"]["openAPIV3Schema"], row[0])


@pytest.mark.slow
def test_the_shipped_policies_match_the_definitions():
    for path in sorted((SHIPPED / "policies").glob("*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text()):
            assert [] == list(draft202012(schema_of(manifest["kind"])).iter_errors(manifest)), path


@pytest.mark.parametrize(
    "manifest",
    [
        node_qos(a_rule(avoidanceThreshold=0)),
        node_qos(a_rule(strategy="preview")),
        node_qos(a_rule(actionName=None)),
        node_qos(a_rule(colour="red")),
        an_object("NodeQOS"),
        an_object("AvoidanceAction", throttle={"cpuThrottle": {"stepCPURatio": 101}}),
        an_object("PodQOS", allowedActions="throttle"),
    ],
)
def test_the_api_server_refuses_what_the_agent_would_refuse(manifest: dict[str, Any]):
    assert not draft202012(schema_of(manifest["kind"])).is_valid(manifest)


def test_the_shipped_config_map_is_valid():
    """It does not set the brake, which means on."""
    data = yaml.safe_load((SHIPPED / "control.yaml").read_text())["data"]
    assert "enforcement" not in data
    control = read_control(data)
    assert ("on", 5, 0.05, "") == (control.enforcement, control.per_minute, control.nodes_at_once, control.problem)
