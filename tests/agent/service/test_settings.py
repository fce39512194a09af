"""The table [agent] of the settings."""

from pathlib import Path
from typing import Any

import pytest

from agent.service.settings import AgentSettings, read_settings, validate


def read(**given: Any) -> AgentSettings:
    settings, problems = read_settings(given, cwd=Path("/etc"))
    assert problems == []
    return settings


def problems(**given: Any) -> dict[str, str]:
    return {each.key: f"{each.message} | {each.cure}" for each in validate(given)}


def test_by_default_the_agent_is_in_preview_on_a_loopback_address():
    settings = read()
    assert (settings.mode, settings.host, settings.port, settings.on_exit) == ("preview", "127.0.0.1", 2021, "keep")


def test_values_of_the_file_and_texts_of_flags():
    """Values of the environment and of flags are texts."""
    typed = read(interval=5, excess=0.2, evictions_per_node=2, interfaces=["eth0", "eth1"], run_queues=True)
    texts = read(interval="5s", excess="0.2", evictions_per_node="2", interfaces="eth0,eth1", run_queues="yes")
    assert typed == texts
    assert (typed.interval, typed.evictions_per_node) == (5.0, 2)
    assert read(policies="policies").policies == Path("/etc/policies")
    assert read(excess=0).excess == 0.0


def test_the_name_of_the_node():
    assert read(node="n").node_name({"NODE_NAME": "other"}) == "n"
    assert read().node_name({"NODE_NAME": "other"}) == "other"
    assert read().node_name({})


@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        ({"intervall": 3}, "agent.intervall", "did you mean agent.interval?"),
        ({"xyz": 3}, "agent.xyz", "[agent] has: mode, node"),
        ({"order": "upstream"}, "agent.order", "remove it: pods are ordered by QoS class before priority"),
        ({"mode": "enforc"}, "agent.mode", 'did you mean "enforce"?'),
        ({"excess": 2}, "agent.excess", "must be a number from 0 to 1; given 2"),
        ({"control": "here"}, "agent.control", "must have the form NAMESPACE/NAME"),
        ({"cgroup_nest": "a/b"}, "agent.cgroup_nest", "must be the name of one group"),
        ({"host": "10.0.0.7"}, "agent.token_file", "set agent.token_file"),
        ({"token_file": "/no/such"}, "agent.token_file", "file /no/such does not exist"),
        ({"watcher_token_file": "/no/such"}, "agent.watcher_token_file", "file /no/such does not exist"),
        ({"prometheus_token_file": "/no/such"}, "agent.prometheus_token_file", "file /no/such does not exist"),
        ({"queries": 3}, "agent.queries", "must be a table, [agent.queries]"),
        ({"queries": {"a": 3}}, "agent.queries.a", "must be a table"),
        ({"queries": {"a": {}}}, "agent.queries.a.expression", "is not set, but required in [agent.queries.a]"),
        (
            {"queries": {"a": {"expresion": "up"}}},
            "agent.queries.a.expresion",
            "did you mean agent.queries.a.expression?",
        ),
        ({"queries": {"a": {"expression": "up"}}}, "agent.prometheus", "must be set, because agent.queries need"),
    ],
)
def test_a_problem_is_reported_with_its_hint(given: dict[str, Any], key: str, words: str):
    assert words in problems(**given)[key]


def test_all_problems_are_reported():
    assert set(problems(mode="x", intervall=1, excess=-1)) == {"agent.mode", "agent.intervall", "agent.excess"}


def test_a_user_defined_metric():
    settings = read(
        prometheus="http://p:9090", queries={"p99": {"expression": "up", "acts_on": "cpu", "throttleable": True}}
    )
    metric = settings.queries["p99"].metric("p99")
    assert (metric.name, metric.throttleable, metric.throttle_quantified) == ("p99", True, False)
