"""The active policies while files and objects change: a mistake keeps the old set, and an unreadable source does not
mean 'no policies'."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp import web

from agent.policy.source import ActivePolicies, ClusterPolicies, DirectoryPolicies, check_policies
from tests.agent.policy.writing import API, CRANE_API, METRICS, a_rule, an_object, node_qos, text_of, throttling, write
from tests.fakes.kube import Asked, FakeKube
from tests.waiting import eventually
from tests.watcher.platform.kube.asking import asked

Outcome = TypeVar("Outcome")
GOOD = text_of(node_qos(), throttling())
BATCH = {"matchLabels": {"tier": "batch"}}
WRONG = text_of(node_qos(a_rule(avoidanceThreshold=0)), throttling())


def names(in_force: ActivePolicies) -> list[str] | None:
    """The active policies as KIND/NAME; None if no policies are known."""
    if in_force.policies is None:
        return None
    return ["/".join(key) for key in in_force.policies.objects]


def in_force(source: DirectoryPolicies) -> ActivePolicies:
    """The active policies now."""
    return asyncio.run(source.refresh())


@pytest.fixture
def source(tmp_path: Path) -> DirectoryPolicies:
    return DirectoryPolicies(tmp_path, metrics=METRICS)


# --- a directory -----------------------------------------------------------------------------------------------------


def test_files_are_followed(tmp_path: Path, source: DirectoryPolicies):
    """An empty directory means that there are no policies."""
    assert [] == names(in_force(source))
    write(tmp_path, a=GOOD)
    assert ["AvoidanceAction/throttle", "NodeQOS/cpu"] == names(in_force(source))
    write(tmp_path, b=text_of(node_qos(name="more")))
    assert ["AvoidanceAction/throttle", "NodeQOS/cpu", "NodeQOS/more"] == names(in_force(source))
    (tmp_path / "a.yaml").unlink()
    # The rules of `more` name a missing action, which is a problem.
    assert ["AvoidanceAction/throttle"] != names(in_force(source))
    (tmp_path / "b.yaml").unlink()
    assert [] == names(in_force(source))


def test_an_invalid_file_keeps_the_old_set_active_and_is_reported_once(
    tmp_path: Path, source: DirectoryPolicies, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, logger="agent.policy")
    write(tmp_path, a=GOOD)
    good = in_force(source)
    write(tmp_path, a=WRONG)
    for _ in range(3):
        bad = in_force(source)
        assert (good.policies, 1) == (bad.policies, len(bad.problems))
    write(tmp_path, a=GOOD)
    assert not in_force(source).problems
    reported = [each.getMessage().partition("\n")[0] for each in caplog.records]
    assert reported == [
        f"policies of {tmp_path} active: 2",
        f"policies of {tmp_path} rejected, the previous policies stay active; problems: 1",
        f"policies of {tmp_path} active: 2",
    ]


def test_no_policies_are_known_before_the_first_valid_set(tmp_path: Path, source: DirectoryPolicies):
    write(tmp_path, a=WRONG)
    assert names(in_force(source)) is None
    assert in_force(source).problems


def test_removed_objects_end_although_another_file_is_invalid(tmp_path: Path, source: DirectoryPolicies):
    write(tmp_path, a=GOOD, b=text_of(node_qos(name="more")))
    in_force(source)
    write(tmp_path, a=WRONG)
    (tmp_path / "b.yaml").unlink()
    assert ["AvoidanceAction/throttle", "NodeQOS/cpu"] == names(in_force(source))
    write(tmp_path, a=text_of(node_qos(a_rule(avoidanceThreshold=0))))
    after = in_force(source)
    assert ["NodeQOS/cpu"] == names(after)
    assert after.policies is not None
    assert not after.policies.for_node({}).rules  # its action was removed, so the rule does not apply


def test_objects_of_an_unreadable_file_stay_active(tmp_path: Path, source: DirectoryPolicies):
    write(tmp_path, a=GOOD)
    in_force(source)
    write(tmp_path, a="kind: [")
    assert ["AvoidanceAction/throttle", "NodeQOS/cpu"] == names(in_force(source))


@pytest.mark.parametrize("broken", ["directory", "file", "encoding", "size"])
def test_an_unreadable_directory_does_not_mean_no_policies(tmp_path: Path, broken: str):
    directory = tmp_path / "policies"
    directory.mkdir()
    source = DirectoryPolicies(directory, metrics=METRICS)
    write(directory, a=GOOD)
    good = in_force(source)
    if broken == "directory":
        directory.rename(tmp_path / "elsewhere")
    elif broken == "file":
        (directory / "a.yaml").unlink()
        (directory / "a.yaml").mkdir()
    elif broken == "encoding":
        (directory / "a.yaml").write_bytes(b"a: \xff")
    else:
        write(directory, a="#" * (1 << 20) + "\n")
    bad = in_force(source)
    assert good.policies == bad.policies
    assert bad.problems
    assert "cannot be read" in str(bad.problems[0]) or "more than" in str(bad.problems[0])


def test_a_missing_directory_is_a_problem_without_policies(tmp_path: Path):
    source = DirectoryPolicies(tmp_path / "none", metrics=METRICS)
    missing = in_force(source)
    assert names(missing) is None
    assert f"{tmp_path / 'none'}: cannot be read: No such file or directory" in str(missing.problems[0])


def test_a_mounted_config_map_is_followed(tmp_path: Path, source: DirectoryPolicies):
    """Its files are links through ..data, which is replaced atomically."""
    for number, text in enumerate([GOOD, text_of(node_qos(name="other"), throttling())]):
        (version := tmp_path / f"..version-{number}").mkdir()
        (version / "a.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..version-0")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    assert ["AvoidanceAction/throttle", "NodeQOS/cpu"] == names(in_force(source))
    (tmp_path / "..new").symlink_to("..version-1")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert ["AvoidanceAction/throttle", "NodeQOS/other"] == names(in_force(source))


def test_a_policy_moved_to_another_file_of_a_config_map_stays_active(tmp_path: Path, source: DirectoryPolicies):
    """The kubelet replaces ..data first, and then adds the link to the new file."""
    for number, files in enumerate([{"a": GOOD}, {"a": text_of(throttling()), "b": text_of(node_qos())}]):
        (version := tmp_path / f"..version-{number}").mkdir()
        write(version, **files)
    (tmp_path / "..data").symlink_to("..version-0")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    assert ["AvoidanceAction/throttle", "NodeQOS/cpu"] == names(in_force(source))
    (tmp_path / "..new").symlink_to("..version-1")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert ["AvoidanceAction/throttle", "NodeQOS/cpu"] == names(in_force(source))
    (tmp_path / "b.yaml").symlink_to("..data/b.yaml")
    after = in_force(source)
    assert (["AvoidanceAction/throttle", "NodeQOS/cpu"], ()) == (names(after), after.problems)


def test_checking_a_directory_reports_all_problems(tmp_path: Path):
    assert "contains no file *.yaml, *.yml, *.json" in str(check_policies(tmp_path, metrics=METRICS).notices[0])
    write(tmp_path, a=GOOD)
    assert check_policies(tmp_path, metrics=METRICS).usable
    write(tmp_path, b=WRONG, c="[")
    assert 4 == len(check_policies(tmp_path, metrics=METRICS).problems)
    assert not check_policies(tmp_path / "none", metrics=METRICS).usable
    assert check_policies(tmp_path / "a.yaml", metrics=METRICS).usable


def test_a_missing_action_fails_the_check_but_not_the_agent(tmp_path: Path, source: DirectoryPolicies):
    """In a running agent, the removal of one AvoidanceAction must not stop the rules of the others."""
    batch = an_object("PodQOS", "batch", allowedActions=["Throtle", "throttle", "away"], labelSelector=BATCH)
    write(tmp_path, a=GOOD, b=text_of(batch))
    checked = check_policies(tmp_path, metrics=METRICS)
    assert [
        ("spec.allowedActions", "unknown AvoidanceAction Throtle", "Did you mean throttle?"),
        ("spec.allowedActions", "unknown AvoidanceAction away", "Known: throttle."),
    ] == [(each.place.path, each.message, each.cure) for each in checked.problems]
    assert not checked.notices
    running = in_force(source)
    assert names(running) == ["AvoidanceAction/throttle", "NodeQOS/cpu", "PodQOS/batch"]
    assert not running.problems
    assert [each.cure for each in running.notices] == ["Did you mean throttle?", "Known: throttle."]


# --- the Kubernetes API ----------------------------------------------------------------------------------------------


PLURALS = {"NodeQOS": "nodeqoss", "AvoidanceAction": "avoidanceactions", "PodQOS": "podqoss"}


def install(server: FakeKube, api: str) -> None:
    """Install the definitions of an API group."""
    for kind, plural in PLURALS.items():
        server.define(f"{api}/{plural}", kind)


@pytest.fixture
def server() -> Any:
    with FakeKube() as server:
        install(server, API)
        yield server


def put(server: FakeKube, manifest: dict[str, Any], *, api: str = API) -> None:
    """As `kubectl apply` does."""
    plural, name = PLURALS[manifest["kind"]], manifest["metadata"]["name"]
    server.put(f"{api}/{plural}", name, metadata=manifest["metadata"], spec=manifest["spec"])


def following(server: FakeKube, story: Callable[[ClusterPolicies], Awaitable[Outcome]], **given: Any) -> Outcome:
    """Run a function with the policies of this server."""

    async def inside(client: Any) -> Outcome:
        source = ClusterPolicies(client, metrics=METRICS, **given)
        await source.start()
        try:
            return await story(source)
        finally:
            await source.close()

    return asked(server, inside)


async def until(source: ClusterPolicies, condition: Callable[[ActivePolicies], object], *, what: str) -> ActivePolicies:
    """Wait until the active policies match, and return them."""

    async def reached():
        return bool(condition(await source.refresh()))

    await eventually(reached, what=what)
    return await source.refresh()


def test_objects_of_the_cluster_are_followed(server: FakeKube):
    put(server, node_qos(annotations={"load-watcher.io/rules": "{high: {restoreValue: 3000}}"}))
    put(server, throttling())
    put(server, an_object("PodQOS", "be", allowedActions=["throttle"], labelSelector={"matchLabels": {"a": "b"}}))

    async def story(source: ClusterPolicies) -> None:
        found = await until(source, lambda found: names(found), what="the policies")
        assert ["AvoidanceAction/throttle", "NodeQOS/cpu", "PodQOS/be"] == names(found)
        assert found.policies is not None
        assert 3000 == found.policies.for_node({}).rules[0].restore_watermark
        put(server, node_qos(a_rule(avoidanceThreshold=0)))
        bad = await until(source, lambda found: found.problems, what="the problem")
        assert found.policies == bad.policies
        where = "Kubernetes API: NodeQOS/cpu spec.rules[0].avoidanceThreshold"
        assert where == str(bad.problems[0].place)
        server.delete(f"{API}/nodeqoss", "cpu")
        await until(source, lambda found: "NodeQOS/cpu" not in (names(found) or ()), what="the policy to go")

    following(server, story)


def test_an_unavailable_api_does_not_mean_no_policies(server: FakeKube):
    """Before the first list no policies are known; later, the known policies stay."""
    put(server, node_qos())
    put(server, throttling())
    server.forbidden = {("list", f"{API}/podqoss")}

    async def story(source: ClusterPolicies) -> None:
        refused = await until(source, lambda found: "cannot be listed" in str(found.problems), what="the refusal")
        assert names(refused) is None
        server.forbidden = set()
        found = await until(source, lambda found: names(found) and not found.problems, what="the policies")
        server.forbidden = {(verb, f"{API}/{kind}") for verb in ("list", "watch") for kind in ("nodeqoss", "podqoss")}
        server.drop_connections()
        for _ in range(20):
            assert found.policies == (await source.refresh()).policies
            await asyncio.sleep(0.01)

    following(server, story)


def test_nothing_is_reported_before_the_first_list_could_arrive(server: FakeKube, caplog: pytest.LogCaptureFixture):
    """Each start reported three kinds that were "not listed yet", two seconds before they were active."""
    caplog.set_level(logging.INFO, logger="agent.policy")
    put(server, node_qos())
    put(server, throttling())
    clock, released = [100.0], threading.Event()

    def hold_lists(request: Asked) -> None:
        if request.verb == "list":
            released.wait(30.0)

    server.fault = hold_lists

    async def story(source: ClusterPolicies) -> None:
        early = await source.refresh()
        assert (early.policies, early.problems) == (None, ())
        await eventually(lambda: any(each.verb == "list" for each in server.asked), what="a list")
        clock[0] += 29.0
        assert not (await source.refresh()).problems
        assert not caplog.messages
        clock[0] += 2.0
        late = [await source.refresh() for _ in range(3)][-1]
        assert {"NodeQOS", "AvoidanceAction", "PodQOS"} <= {each.place.object for each in late.problems}
        assert "has not been listed within 30 s" in late.problems[0].message
        assert 1 == len(caplog.messages)
        released.set()
        await until(source, lambda found: names(found) and not found.problems, what="the policies")

    following(server, story, monotonic=lambda: clock[0])


def test_a_kind_that_may_not_be_listed_is_reported_at_once(server: FakeKube):
    put(server, node_qos())
    server.forbidden = {("list", f"{API}/podqoss")}

    async def story(source: ClusterPolicies) -> None:
        found = await until(source, lambda found: found.problems, what="the refusal")
        (problem,) = found.problems
        assert "PodQOS" == problem.place.object
        assert "grant it a ClusterRole with the rule" in problem.cure

    following(server, story)


def test_a_cluster_without_the_definitions_has_no_policies():
    async def story(source: ClusterPolicies) -> list[str] | None:
        return names(await until(source, lambda found: names(found) is not None, what="an answer"))

    with FakeKube() as server:
        assert [] == following(server, story)


def test_an_invalid_object_does_not_affect_others(server: FakeKube):
    put(server, node_qos())
    put(server, throttling())

    async def story(source: ClusterPolicies) -> None:
        found = await until(source, lambda found: names(found), what="the policies")
        server.put(f"{API}/avoidanceactions", "throttle", spec=["not", "a", "mapping"])
        bad = await until(source, lambda found: found.problems, what="the problem")
        assert found.policies == bad.policies
        assert "AvoidanceAction/throttle: cannot be read" in str(bad.problems[0])

    following(server, story)


# --- two API groups --------------------------------------------------------------------------------------------------


def test_the_policies_of_both_groups_are_followed(server: FakeKube):
    install(server, CRANE_API)
    put(server, node_qos())
    put(server, throttling(), api=CRANE_API)
    put(server, node_qos(name="more"), api=CRANE_API)

    async def story(source: ClusterPolicies) -> None:
        found = await until(source, lambda found: names(found), what="the policies")
        assert ["AvoidanceAction/throttle", "NodeQOS/cpu", "NodeQOS/more"] == names(found)
        assert ("load-watcher.io", "ensurance.crane.io") == source.installed()
        server.delete(f"{CRANE_API}/nodeqoss", "more")
        await until(source, lambda found: "NodeQOS/more" not in (names(found) or ()), what="the policy to go")

    following(server, story)


def test_a_group_may_be_missing_appear_and_disappear(server: FakeKube):
    """A missing group is only requested by discovery: its list would be refused without a right, and would cost a fleet
    of agents three requests each."""
    put(server, node_qos())
    put(server, throttling())
    server.forbidden = {(verb, f"{CRANE_API}/{plural}") for verb in ("list", "watch") for plural in PLURALS.values()}

    async def story(source: ClusterPolicies) -> None:
        found = await until(source, lambda found: names(found), what="the policies")
        assert (["AvoidanceAction/throttle", "NodeQOS/cpu"], ()) == (names(found), found.problems)
        assert ("load-watcher.io",) == source.installed()
        assert not [each for each in server.asked if each.resource.startswith(CRANE_API)]
        server.forbidden = set()
        install(server, CRANE_API)
        put(server, node_qos(name="more"), api=CRANE_API)
        found = await until(source, lambda found: "NodeQOS/more" in (names(found) or ()), what="the other group")
        assert not found.problems
        for plural in PLURALS.values():
            server.undefine(f"{CRANE_API}/{plural}")
        server.drop_connections()
        found = await until(source, lambda found: "NodeQOS/more" not in (names(found) or ()), what="the group to go")
        assert ["AvoidanceAction/throttle", "NodeQOS/cpu"] == names(found)

    following(server, story, discover_every=0.05)


def test_an_installed_group_that_may_not_be_listed_is_a_problem(server: FakeKube):
    """Its policies are unknown, so the whole set is unknown."""
    install(server, CRANE_API)
    put(server, node_qos())
    put(server, throttling())
    server.forbidden = {("list", f"{CRANE_API}/nodeqoss")}

    async def story(source: ClusterPolicies) -> None:
        found = await until(source, lambda found: found.problems, what="the refusal")
        assert names(found) is None
        assert "Kubernetes API (ensurance.crane.io): NodeQOS: cannot be listed" in str(found.problems[0])

    following(server, story)


def test_a_failed_discovery_does_not_mean_no_policies(server: FakeKube):
    put(server, node_qos())
    put(server, throttling())
    server.fault = lambda request: web.Response(status=503) if not request.resource else None

    async def story(source: ClusterPolicies) -> None:
        found = await until(source, lambda found: found.problems, what="the failure")
        assert names(found) is None
        assert all("cannot be listed" in each.message for each in found.problems)
        server.fault = lambda request: None
        await until(source, lambda found: names(found) and not found.problems, what="the policies")

    following(server, story, discover_every=0.05)


def threshold(found: ActivePolicies) -> int:
    """The threshold of the only rule."""
    assert found.policies is not None
    (rule,) = found.policies.for_node({}).rules
    return rule.avoidance_threshold


def test_an_agent_that_starts_while_both_groups_have_the_policies_uses_them(
    server: FakeKube, caplog: pytest.LogCaptureFixture
):
    """It has no previous set that could stay active, and must not leave its node without policies."""
    install(server, CRANE_API)
    for each in (throttling(), node_qos(a_rule(avoidanceThreshold=3))):
        put(server, each, api=CRANE_API)
    for each in (throttling(), node_qos(a_rule(avoidanceThreshold=2))):
        put(server, each)

    async def story(source: ClusterPolicies) -> None:
        found = await until(source, lambda found: names(found), what="the policies")
        assert (2, ()) == (threshold(found), found.problems)
        for plural, name in (("nodeqoss", "cpu"), ("avoidanceactions", "throttle")):
            server.delete(f"{API}/{plural}", name)
        back = await until(source, lambda found: not found.notices, what="those of Crane to be the only ones")
        assert 3 == threshold(back)

    following(server, story)
    warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert 2 == len([each for each in warned if "NodeQOS/cpu: is not used" in each or "throttle: is not used" in each])


def test_policies_move_from_crane_to_the_other_group_without_a_gap(server: FakeKube):
    """While both copies exist, those of load-watcher.io are active."""
    install(server, CRANE_API)
    put(server, node_qos(), api=CRANE_API)
    put(server, throttling(), api=CRANE_API)

    async def story(source: ClusterPolicies) -> None:
        before = await until(source, lambda found: names(found), what="the policies of Crane")
        assert not before.notices
        put(server, throttling())
        put(server, node_qos(a_rule(avoidanceThreshold=2)))
        both = await until(source, lambda found: len(found.notices) == 2, what="both groups to have them")
        assert (2, ()) == (threshold(both), both.problems)
        for name in ("nodeqoss/cpu", "avoidanceactions/throttle"):
            plural, _, key = name.partition("/")
            server.delete(f"{CRANE_API}/{plural}", key)
        after = await until(source, lambda found: not found.notices, what="the copies to be the only ones")
        assert 2 == threshold(after)

    following(server, story)
