"""`load-watcher score POD.yaml` against a running extender, and the manifests that it reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from load_watcher.main import main
from load_watcher.scoring.extender_client import by_plugins
from load_watcher.scoring.score_texts import number
from load_watcher.scoring.scores import MOST_SHOWN, score_tables
from scorers.extender.handlers import Extender
from scorers.extender.manifest import POD_TEMPLATE_PATHS, read_pod
from scorers.profiles.profiles import PluginSettings, ProfileSettings
from scorers.profiles.ranking import ProfileRunner
from tests.fakes.service import Live, Protection
from tests.hostile.server import HostileServer
from tests.scorers.simulated_cluster import NOW, load, node, table

POD = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: c
    resources: {limits: {cpu: "1"}}
"""
NOBODY: dict[str, Any] = {"key": "web", "requests": {}, "limits": {}}


def running(protection: Protection | None = None) -> Live:
    nodes = [node(name, {"cpu": "4", "memory": "8Gi"}) for name in ("a", "b")]
    cluster = table(nodes, loads=load({"a": {("CPU", "AVG"): 15.0}, "b": {("CPU", "AVG"): 95.0}}))
    plugins = (
        PluginSettings("TargetLoadPacking", 1, {}, ("score",)),
        PluginSettings("HighLoadFilter", 1, {}, ("filter",)),
    )
    profile = ProfileRunner(ProfileSettings("default", plugins), cluster)
    return Live(routes=Extender(cluster, {"default": profile}, now=lambda: NOW + 7).routes(), protection=protection)


@pytest.fixture
def live() -> Iterator[Live]:
    with running() as served:
        yield served


def score(live: Live, *arguments: str, manifest: str = POD) -> Result:
    command = ["score", "-", "--url", f"http://127.0.0.1:{live.port}", *arguments]
    return CliRunner().invoke(main, command, input=manifest, prog_name="load-watcher", env={"COLUMNS": "200"})


def test_nodes_are_ranked_as_a_table(live: Live) -> None:
    """The best node first, with the age of its load and the reasons of its score or rejection."""
    result = score(live)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines == [
        "default/web: requests cpu 1000m; limits cpu 1000m",
        "load from Test, 7 s old",
        "target of TargetLoadPacking: 40 %",
        "node score age why",
        "a 100.0 7 s would be at cpu 40.0 %",
        "b rejected 7 s node(s) had cpu load above the threshold with the pod, cpu 120.0 %, above 100 %",
    ]


def test_nodes_without_room_are_last_and_name_the_resource(live: Live) -> None:
    """Also if only one plug-in ranks; rules that are not checked are named."""
    large = POD.replace('"1"', '"5"').replace("spec:", "spec:\n  topologySpreadConstraints: [{topologyKey: zone}]")
    for arguments, why in (((), "NodeResourcesFit: no room: cpu"), (("--plugin", "TargetLoadPacking"), "no room: cpu")):
        result = score(live, *arguments, manifest=large)
        lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
        assert "rules of the pod that were not checked: topology spread constraints" in lines
        assert f"a rejected 7 s {why}" in lines
    reported = json.loads(score(live, "--plugin", "TargetLoadPacking", "-o", "json", manifest=large).stdout)
    assert [each["passes"] for each in reported["nodes"]] == [False, False]
    assert "its plug-ins: HighLoadFilter, TargetLoadPacking;" in score(live, "--plugin", "x", manifest=large).stderr


def test_without_a_terminal_each_node_is_one_line(live: Live) -> None:
    """At any width, so that grep finds the node with its score and reasons."""
    command = ["score", "-", "--url", f"http://127.0.0.1:{live.port}"]
    found = CliRunner().invoke(main, command, input=POD, prog_name="load-watcher", env={"COLUMNS": "40"})
    (line,) = [line for line in found.stdout.splitlines() if line.startswith("b ")]
    assert line.rstrip().endswith("above the threshold with the pod, cpu 120.0 %, above 100 %")


def test_the_ranking_can_be_limited_to_some_plug_ins(live: Live) -> None:
    """As if the profile had no others: no plug-in rejects, or none scores."""

    def ranked(*arguments: str) -> list[tuple[str, float, bool, list[str]]]:
        result = score(live, *arguments, "-o", "json")
        assert result.exit_code == 0, result.output
        named = (
            (each["name"], each["score"], each["passes"], [one["name"] for one in each["plugins"]])
            for each in json.loads(result.stdout)["nodes"]
        )
        return list(named)

    packing, filtering = ["TargetLoadPacking"], ["HighLoadFilter"]
    assert ranked("--plugin", *packing) == [("a", 100.0, True, packing), ("b", 0.0, True, packing)]
    assert ranked("--plugin", *filtering) == [("a", 0.0, True, filtering), ("b", 0.0, False, filtering)]
    assert ranked("--plugin", *packing, "--plugin", *filtering) == ranked()


def test_scores_of_some_plug_ins_are_combined_by_weight() -> None:
    """As in the profile; NaN counts as 0, and the best node is first."""

    def of(name: str, *given: float | None) -> dict[str, Any]:
        parts = [
            {"name": each, "point": "score", "weight": weight, "score": one}
            for each, weight, one in zip(("A", "B", "C"), (3, 1, 5), given, strict=True)
        ]
        return {"name": name, "score": 1.0, "passes": True, "plugins": parts}

    document = {"profile": "default", "nodes": [of("a", 20.0, 60.0, 100.0), of("b", 80.0, None, 0.0)]}
    reported = by_plugins(document, ["A", "B"])["nodes"]
    assert [(each["name"], each["score"]) for each in reported] == [("b", 60.0), ("a", 30.0)]


def test_each_of_several_plug_ins_has_its_own_line() -> None:
    """With its score, in the order of the profile; narrow terminals do not break names of nodes."""

    empty: dict[str, Any] = {"inputs": {}, "steps": {}}

    def part(name: str, given: float | None) -> dict[str, Any]:
        return {
            "name": name,
            "point": "score",
            "score": given,
            "reason": f"because of {name}" + ("" if given is None else f": {given:.0f}"),
            **empty,
        }

    parts = [part("Packs", 40.0), part("Spreads", None)]
    node = {"name": "a-node-with-a-long-name", "score": 20.0, "passes": True, "sampled": None, "plugins": parts}
    console = Console(width=80)
    with console.capture() as captured:
        console.print(
            *score_tables({"pod": NOBODY, "load": None, "time": NOW, "nodes": [node]}, explained=False), sep="\n"
        )
    lines = [" ".join(each.split()) for each in captured.get().splitlines()]
    assert lines == [
        "web: no requests or limits",
        "no load data",
        "node score age why",
        "a-node-with-a-long-name 20.0 - Packs 40: because of Packs",
        "Spreads unknown: because of Spreads",
    ]


def test_a_node_is_a_line_of_80_columns_on_a_terminal() -> None:
    """Best, zero and rejected are coloured; other numbers are not."""

    def packs(score: float, cpu: float, memory: float) -> dict[str, Any]:
        reason = f"cpu would be at {cpu} %, above the target of 50 %; memory would be at {memory} %: {score:.0f}"
        steps = {"cpu predicted %": cpu, "memory predicted %": memory}
        part = {"inputs": {"targetUtilization": 50.0}, "steps": steps, "reason": reason}
        return {"name": "TargetLoadPacking", "point": "score", "score": score, **part}

    def ranked(name: str, score: float, *plugins: dict[str, Any], passes: bool = True) -> dict[str, Any]:
        return {"name": name, "score": score, "passes": passes, "sampled": NOW - 163.0, "plugins": plugins}

    hot = {
        "name": "HighLoadFilter",
        "point": "filter",
        "passes": False,
        "reason": "node(s) had cpu load above the threshold with the pod, cpu 104.2 %, above 85 %",
        "inputs": {"usageThresholds": {"cpu": 85.0, "memory": 90.0}},
        "steps": {"cpu expected %": 104.2, "memory expected %": 40.0},
    }
    nodes = [
        ranked("general-a-03", 47.0, packs(47.0, 54.7, 77.5)),
        ranked("general-a-04", 0.0, packs(0.0, 99.9, 99.9)),
        ranked("memory-c-001", 0.0, hot, passes=False),
    ]
    console = Console(width=80, force_terminal=True, highlight=False, color_system="standard")
    with console.capture() as captured:
        console.print(
            *score_tables({"pod": NOBODY, "load": None, "time": NOW, "nodes": nodes}, explained=False), sep="\n"
        )
    lines = [each.rstrip() for each in captured.get().splitlines()]
    assert "target of TargetLoadPacking: 50 %" == lines[2]
    assert [
        "general-a-03      \x1b[1;32m47.0\x1b[0m  163 s  would be at cpu 54.7 %, memory 77.5 %",
        "general-a-04       \x1b[33m0.0\x1b[0m  163 s  would be at cpu 99.9 %, memory 99.9 %",
        "memory-c-001  \x1b[31mrejected\x1b[0m  163 s  cpu 104.2 %, above the threshold of 85 %",
    ] == lines[4:]


def test_bytes_are_printed_exactly() -> None:
    """Fractions have six digits."""
    assert [number(each) for each in (34359738368.0, 16.0, 2 / 3, None)] == [
        "34359738368",
        "16",
        "0.666667",
        "unknown",
    ]


def test_a_long_ranking_is_truncated() -> None:
    """It has the best nodes, and the number of the others."""
    names = [f"n{number:02}" for number in range(MOST_SHOWN + 2)]
    reported: list[Any] = [
        {"name": name, "score": 1.0, "passes": True, "sampled": None, "plugins": []} for name in names
    ]
    lines = list(
        score_tables(
            {"pod": NOBODY, "load": None, "time": NOW, "nodes": reported},
            explained=True,
        )
    )
    assert "and 2 more nodes; --node NODE or -o json shows them" in lines
    assert f"\n[bold]{names[MOST_SHOWN - 1]}[/]" in lines
    assert f"\n[bold]{names[MOST_SHOWN]}[/]" not in lines


def test_every_number_is_explained(live: Live) -> None:
    """With --explain."""
    result = score(live, "--explain", "--node", "a", "--node", "missing")
    assert "unknown nodes: missing" in result.stdout
    assert "TargetLoadPacking: cpu would be at 40.0 %, 0.0 below the target: 100" in result.stdout
    assert "instance:node_cpu:ratio: AVG 15 over 15m; newest sample 7 s old" in result.stdout
    assert "cpu load: 15.0 %" in result.stdout
    assert "podDemand: cpu 1.0 cores" in result.stdout
    assert "failOpen: yes" in result.stdout
    assert "\nb" not in result.stdout


def test_json_output(live: Live) -> None:
    reported = json.loads(score(live, "-o", "json").stdout)
    assert [each["name"] for each in reported["nodes"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "manifest", "said"),
    [
        (("--profile", "other"), POD, "profiles are: default"),
        (("--plugin", "Peaks"), POD, "its plug-ins: HighLoadFilter, TargetLoadPacking"),
        (("--node", "n99", "--node", "n98"), POD, "unknown node: n98, n99"),
        (("--url", "http://127.0.0.1:1"), POD, "check that load-watcher runs at this address"),
        ((), "kind: Service", "no pod found, only: Service"),
        ((), "kindd: Pod", "no pod found, only: an object without a kind"),
        ((), "- kind: Pod", "no pod found, only: a list"),
        ((), "web", "no pod found, only: 'web'"),
        ((), "", "the document is empty"),
        ((), "a: [1", "invalid YAML"),
        ((), "kind: Pod", "the Pod has no spec"),
        ((), "kind: Deployment\nspec: {}", "the Deployment has no spec.template.spec"),
        ((), POD.replace('"1"', "much"), "cpu: 'much' is not a Kubernetes quantity"),
        ((), POD.replace("{name: web}", "web"), "metadata of the Pod is not a mapping: 'web'"),
        ((), POD.replace('{cpu: "1"}', "lots"), "limits of the resources is not a mapping: 'lots'"),
        ((), "kind: [Pod]\nspec: {}", "no pod found, only: ['Pod']"),
        ((), "kind: Pod\nspec: {true: 1}", "invalid YAML for Kubernetes"),
        ((), "a: &a [*a]\nkind: Pod\nspec: {}", "invalid YAML for Kubernetes"),
    ],
)
def test_an_error_has_exit_code_2(live: Live, arguments: tuple[str, ...], manifest: str, said: str) -> None:
    result = score(live, *arguments, manifest=manifest)
    assert result.exit_code == 2
    assert said in result.stderr


def test_without_plug_ins_the_error_names_the_missing_settings() -> None:
    """As a service that `make serve` starts."""
    with Live() as bare:
        for command in (["score", "-"], ["why", "shop/web"], ["shadow"]):
            asked = [*command, "--url", f"http://127.0.0.1:{bare.port}"]
            result = CliRunner().invoke(main, asked, input=POD, prog_name="load-watcher")
            assert result.exit_code == 2
            assert "add [scheduler.NAME] to the settings of that service" in result.stderr


@pytest.mark.parametrize("response", ["empty object", "other object"])
@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize(
    "command",
    [("score", "-"), ("score", "-", "--node", "a"), ("score", "-", "--plugin", "a"), ("why", "web"), ("shadow",)],
    ids=" ".join,
)
def test_json_of_another_server_is_an_error_with_its_address(
    command: tuple[str, ...], output: str, response: str
) -> None:
    with HostileServer() as server:
        server.hostility = response
        asked = [*command, "--url", server.url, "-o", output]
        result = CliRunner().invoke(main, asked, input=POD, prog_name="load-watcher")
    assert (result.exit_code, result.stdout) == (2, ""), result.exception
    assert server.url in result.stderr
    assert "returned JSON that is not a response of a load-watcher service: " in result.stderr
    assert "check that this is the address of a load-watcher service, and" in result.stderr


def test_the_token_is_sent(tmp_path: Any) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    with running(Protection(token="s3cret")) as served:
        assert "a valid bearer token is required" in score(served).stderr
        assert score(served, "--token-file", str(tmp_path / "token")).exit_code == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is a directory"),
        (b"\xff\xfe", "it is not UTF-8 text"),
        (b" \n", "must contain the token on a single line"),
        (b"s3cret\nX-Other: 1", "must contain the token on a single line"),
    ],
    ids=["a directory", "bytes", "blank", "two lines"],
)
def test_an_invalid_token_file_is_an_error(tmp_path: Any, live: Live, content: bytes | None, said: str) -> None:
    """As an error of the command line, without the content of the file."""
    file = tmp_path / "token"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    result = score(live, "--token-file", str(file))
    assert result.exit_code == 2
    assert said in result.stderr
    assert "s3cret" not in result.stderr


@pytest.mark.parametrize("kind", POD_TEMPLATE_PATHS)
def test_the_pod_template_of_each_kind_of_object_is_read(kind: str) -> None:
    """Requests default to limits, as in the API server."""
    container = {"name": "c", "resources": {"limits": {"cpu": "1"}}}
    document: Any = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    for key in reversed(POD_TEMPLATE_PATHS[kind]):
        document = {key: document}
    found = read_pod(json.dumps({"apiVersion": "v1", "kind": kind, **document}))
    assert found["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}
    assert found["metadata"]["name"] == "pod"
    assert read_pod(f"kind: ConfigMap\n---\n{POD}")["metadata"]["name"] == "web"


@pytest.mark.parametrize("kind", sorted(set(POD_TEMPLATE_PATHS) - {"Pod"}))
def test_a_pod_has_the_object_of_its_template_as_owner(kind: str) -> None:
    """In its namespace, with its name: pods of a DaemonSet pass filters that reject others."""
    document: Any = {"metadata": {"name": "of-the-template"}, "spec": {"containers": []}}
    for key in reversed(POD_TEMPLATE_PATHS[kind]):
        document = {key: document}
    found = read_pod(
        json.dumps(
            {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "web", "namespace": "shop"}, **document}
        )
    )
    owners = [{"apiVersion": "apps/v1", "kind": kind, "name": "web", "controller": True}]
    assert found["metadata"] == {"name": "of-the-template", "namespace": "shop", "ownerReferences": owners}


def test_the_output_of_kubectl_get_is_read() -> None:
    """A List for several objects, with null for empty values."""
    template = "{metadata: {creationTimestamp: null, labels: null}, spec: {containers: [{name: c, resources: null}]}}"
    listed = f"kind: List\nitems:\n- {{kind: Service}}\n- {{kind: Job, spec: {{template: {template}}}}}"
    found = read_pod(listed)
    assert found["spec"] == {"containers": [{"name": "c"}]}
    assert set(found["metadata"]) == {"name", "namespace", "ownerReferences"}


@pytest.mark.parametrize(("of_container", "expected"), [({}, {"cpu": "2"}), ({"cpu": "1"}, {})])
def test_the_request_of_a_pod_defaults_to_its_limit_without_container_requests(
    of_container: Any, expected: Any
) -> None:
    """KEP-2837."""
    containers = [{"name": "c", "resources": {"requests": of_container}}]
    spec = {"resources": {"limits": {"cpu": "2"}}, "containers": containers}
    found = read_pod(json.dumps({"kind": "Pod", "spec": spec}))
    assert found["spec"]["resources"]["requests"] == expected
