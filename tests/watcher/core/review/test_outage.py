"""A partial outage of the monitoring is distinguished from nodes that leave; the log of findings stays small and
exact."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watcher.core.review.findings import FindingLog, FleetFinding
from watcher.core.review.outage import OutageDecision, OutageGuard
from watcher.core.review.settings import ReviewSettings
from watcher.model import Finding, FindingKind, Remedy

NOW = 1_700_000_000.0
LIMITS = ReviewSettings()
MINUTE = 60.0


class Fleet:
    """Nodes with a sample every 15 s until something happens to them, and the guard over them."""

    def __init__(self, size: int, *, limits: ReviewSettings = LIMITS) -> None:
        self.limits = limits
        self.guard = OutageGuard(limits)
        self.now = NOW
        self.names = [f"n{i:03}" for i in range(size)]
        self.silent_since: dict[str, float] = {}
        self.frozen: set[str] = set()
        self.gone: set[str] = set()

    def silence(self, *nodes: str) -> None:
        self.silent_since |= dict.fromkeys(nodes, self.now)

    def wake(self, *nodes: str) -> None:
        for name in nodes:
            del self.silent_since[name]

    def tick(self, minutes: float = 1.0) -> OutageDecision:
        """One step of the guard, `minutes` after the last one."""
        self.now += minutes * MINUTE
        self.nodes = [name for name in self.names if name not in self.gone]
        newest = np.array([self.silent_since.get(name, self.now - 5.0) for name in self.nodes])
        self.vanishing = self.now - newest > self.limits.max_staleness_s
        self.verdict = self.guard.step(
            now=self.now,
            nodes=self.nodes,
            newest=newest,
            cadence=np.full(len(self.nodes), 15.0),
            would_vanish=self.vanishing,
            would_quarantine=np.array([name in self.frozen for name in self.nodes], dtype=bool),
        )
        return self.verdict

    def named(self, which) -> set[str]:
        return {self.nodes[row] for row in np.flatnonzero(which)}

    @property
    def served(self) -> set[str]:
        return self.named(~self.vanishing & ~self.verdict.quarantined)


def kinds(verdict: OutageDecision) -> list[tuple[FindingKind, str, Remedy]]:
    return [(finding.kind, finding.node, finding.remedy) for finding in verdict.findings]


def test_a_healthy_fleet_has_no_findings():
    """No node is held, late or lost in any tick."""
    fleet = Fleet(10)
    for _ in range(5):
        verdict = fleet.tick()
        assert not (verdict.held | verdict.late | verdict.quarantined).any()
        assert np.isnan(verdict.age_s).all()
        assert (verdict.lost, verdict.findings) == ({}, ())


def test_a_fifth_of_the_nodes_may_vanish_but_not_one_more():
    """20 of 100 vanish with a finding each. 21 of 100 are lost, and the list is incomplete."""
    for count, lost in ((20, False), (21, True)):
        fleet = Fleet(100)
        fleet.tick()
        fleet.silence(*fleet.names[:count])
        for _ in range(5):
            fleet.tick()
            assert fleet.verdict.lost == {}
        fleet.tick()
        assert set(fleet.verdict.lost) == (set(fleet.names[:count]) if lost else set())
        if lost:
            assert kinds(fleet.verdict) == [(FindingKind.PARTIAL_OUTAGE, "", Remedy.LEFT_OUT)]
            assert set(fleet.verdict.lost.values()) == {fleet.silent_since["n000"]}
        else:
            assert kinds(fleet.verdict) == [(FindingKind.STALE, name, Remedy.LEFT_OUT) for name in fleet.names[:20]]


def test_nodes_that_fall_behind_together_are_served_with_their_age_until_stale():
    """A third of the fleet falls silent: it is served with age_s and a finding each minute, until max_staleness."""
    fleet = Fleet(9)
    fleet.tick()
    fleet.silence("n000", "n001", "n002")
    ages = []
    for _ in range(5):
        verdict = fleet.tick()
        assert fleet.named(verdict.late) == {"n000", "n001", "n002"} if fleet.now - NOW > 2 * MINUTE else True
        ages.append(verdict.age_s[0])
        assert math.isnan(verdict.age_s[5])
        assert len(fleet.served) == 9
    assert ages == pytest.approx([math.nan, 120.0, 180.0, 240.0, 300.0], nan_ok=True)
    assert kinds(verdict) == [(FindingKind.PARTIAL_OUTAGE, "", Remedy.HELD)]
    assert set(fleet.tick().lost) == {"n000", "n001", "n002"}


def test_a_single_node_that_falls_behind_is_not_an_outage():
    """One of nine is late: the rule for silent nodes applies, not the guard."""
    fleet = Fleet(9)
    fleet.tick()
    fleet.silence("n000")
    for _ in range(4):
        assert not fleet.tick().late.any()


def test_an_outage_over_two_ticks_is_one_outage():
    """15 of 100 vanish at one tick, 10 at the next: together more than a fifth, so all 25 are lost."""
    fleet = Fleet(100)
    fleet.tick()
    fleet.silence(*fleet.names[:15])
    fleet.tick()
    fleet.silence(*fleet.names[15:25])
    for _ in range(5):
        fleet.tick()
    assert len(fleet.named(fleet.vanishing)) == 15
    assert fleet.verdict.lost == {}
    fleet.tick()
    assert set(fleet.verdict.lost) == set(fleet.names[:25])


def test_nodes_that_leave_minutes_apart_are_not_an_outage():
    """15 of 100 now and 10 three minutes later leave the list with a finding each."""
    fleet = Fleet(100)
    fleet.tick()
    fleet.gone |= set(fleet.names[:15])
    assert kinds(fleet.tick()) == [(FindingKind.MISSING, name, Remedy.LEFT_OUT) for name in fleet.names[:15]]
    fleet.tick()
    fleet.tick()
    fleet.gone |= set(fleet.names[15:25])
    verdict = fleet.tick()
    assert len(verdict.findings) == 10
    assert verdict.lost == {}


def test_nodes_that_the_history_removed_count_as_vanished():
    """More than a fifth that the history no longer lists is lost, at the times of the last samples."""
    fleet = Fleet(10)
    fleet.tick()
    fleet.gone |= {"n000", "n001", "n002"}
    assert fleet.tick().lost == dict.fromkeys(["n000", "n001", "n002"], NOW + MINUTE - 5.0)


def test_a_fleet_of_one_node_that_vanishes_is_an_outage():
    fleet = Fleet(1)
    fleet.tick()
    fleet.gone.add("n000")
    assert set(fleet.tick().lost) == {"n000"}


def test_the_minimum_number_of_nodes_of_an_outage_can_be_set():
    """With outage_nodes = 2, one of three nodes may leave, but not two, and not the only one."""
    limits = ReviewSettings(outage_nodes=2)
    for size, leave, lost in ((3, 1, 0), (3, 2, 2), (1, 1, 1)):
        fleet = Fleet(size, limits=limits)
        fleet.tick()
        fleet.gone |= set(fleet.names[:leave])
        assert len(fleet.tick().lost) == lost


def test_lost_nodes_that_return_complete_the_list():
    """The list is complete again once no more than a fifth is missing, with one finding."""
    fleet = Fleet(10)
    fleet.tick()
    fleet.silence("n000", "n001", "n002")
    for _ in range(7):
        fleet.tick()
    assert len(fleet.verdict.lost) == 3
    fleet.wake("n000")
    verdict = fleet.tick()
    assert verdict.lost == {}
    assert kinds(verdict) == [(FindingKind.PARTIAL_OUTAGE, "", Remedy.REPORTED)]
    assert "nodes that returned now: 1; nodes still missing, left out: 2" in verdict.findings[0].reason
    assert fleet.tick().findings == ()


def test_a_fleet_that_shrank_is_accepted_after_half_an_hour():
    """After forget_after, the lost nodes are removed with one finding, and the list is served again."""
    fleet = Fleet(10)
    fleet.tick()
    fleet.gone |= set(fleet.names[:4])
    for _ in range(31):
        assert len(fleet.tick().lost) == 4
    verdict = fleet.tick()
    assert verdict.lost == {}
    assert kinds(verdict) == [(FindingKind.PARTIAL_OUTAGE, "", Remedy.LEFT_OUT)]
    assert "did not return within 1800 s" in verdict.findings[0].reason
    assert fleet.tick().findings == ()


def test_a_frozen_node_is_quarantined_with_a_finding_per_tick():
    """One of ten nodes has constant values: it is not served until they change."""
    fleet = Fleet(10)
    fleet.tick()
    fleet.frozen = {"n003"}
    for _ in range(8):
        verdict = fleet.tick()
        assert fleet.named(verdict.quarantined) == {"n003"}
        assert kinds(verdict) == [(FindingKind.FROZEN, "n003", Remedy.QUARANTINED)]
    fleet.frozen = set()
    assert not fleet.tick().quarantined.any()
    assert fleet.verdict.findings == ()


def test_many_frozen_nodes_are_held_until_max_staleness_and_lost_after_it():
    """3 of 10 are frozen: they are served with their age for 5 minutes, then quarantined, and the list is refused."""
    fleet = Fleet(10)
    fleet.tick()
    fleet.frozen = {"n000", "n001", "n002"}
    for minute in range(6):
        verdict = fleet.tick()
        assert fleet.named(verdict.held) == fleet.frozen
        assert len(fleet.served) == 10
        assert verdict.lost == {}
        assert verdict.age_s[0] == max(5.0, minute * MINUTE)
    assert kinds(verdict) == [(FindingKind.FROZEN, name, Remedy.HELD) for name in sorted(fleet.frozen)] + [
        (FindingKind.PARTIAL_OUTAGE, "", Remedy.HELD)
    ]
    verdict = fleet.tick()
    assert fleet.named(verdict.quarantined) == fleet.frozen
    assert set(verdict.lost) == fleet.frozen


def test_frozen_and_vanished_nodes_count_together():
    """15 of 100 freeze while 10 vanish, together more than a fifth: the frozen ones are held, the vanished ones
    lost."""
    fleet = Fleet(100)
    fleet.tick()
    fleet.gone |= set(fleet.names[:10])
    fleet.frozen = set(fleet.names[10:25])
    verdict = fleet.tick()
    assert set(verdict.lost) == set(fleet.names[:10])
    assert fleet.named(verdict.held) == fleet.frozen


def test_a_held_node_that_vanishes_is_lost_at_once():
    """Its samples are too old to be served, for any time that it was held."""
    fleet = Fleet(10)
    fleet.tick()
    fleet.frozen = {"n000", "n001", "n002"}
    fleet.tick()
    fleet.gone |= fleet.frozen
    assert set(fleet.tick().lost) == fleet.frozen


def test_observe_quarantines_no_node_and_still_guards_the_list():
    """In observe mode, a frozen node is reported; an incomplete list is refused as in enforce mode."""
    fleet = Fleet(10, limits=ReviewSettings(mode="observe"))
    fleet.tick()
    fleet.frozen = {"n000", "n001", "n002"}
    verdict = fleet.tick()
    assert not (verdict.held | verdict.quarantined).any()
    assert kinds(verdict) == [(FindingKind.FROZEN, name, Remedy.REPORTED) for name in sorted(fleet.frozen)]
    fleet.gone |= fleet.frozen
    assert set(fleet.tick().lost) == fleet.frozen


def test_nodes_that_are_stale_at_the_first_tick_are_not_known():
    """A restart with old samples of removed nodes does not refuse the list."""
    fleet = Fleet(10)
    fleet.silence(*fleet.names[:5])
    verdict = fleet.tick(minutes=10)
    assert (verdict.lost, verdict.findings) == ({}, ())
    assert fleet.tick().lost == {}


@pytest.mark.parametrize(("frozen", "held"), [(2, 0), (3, 3)])
def test_the_nodes_of_the_first_tick_are_the_known_ones(frozen, held):
    """After a restart, two of ten frozen nodes are quarantined, three are held."""
    fleet = Fleet(10)
    fleet.frozen = set(fleet.names[:frozen])
    verdict = fleet.tick()
    assert (verdict.held.sum(), verdict.quarantined.sum()) == (held, frozen - held)


def test_one_late_node_at_the_first_tick_is_not_an_outage():
    """After a restart, with ten nodes."""
    fleet = Fleet(10)
    fleet.silence("n000")
    assert not fleet.tick(minutes=3).late.any()


def test_new_nodes_do_not_hide_an_outage():
    """25 of 100 known nodes vanish in a tick in which 30 new ones appear: the list has still lost a quarter."""
    fleet = Fleet(130)
    fleet.gone = set(fleet.names[100:])
    fleet.tick()
    fleet.gone = set(fleet.names[:25])
    assert set(fleet.tick().lost) == fleet.gone


def test_new_nodes_are_not_an_outage():
    """A fleet may triple in one tick. Frozen nodes that were never in the list are not missing from it."""
    fleet = Fleet(30)
    fleet.gone = set(fleet.names[10:])
    fleet.tick()
    fleet.gone = set()
    fleet.frozen = set(fleet.names[10:20])
    verdict = fleet.tick()
    assert fleet.named(verdict.quarantined) == fleet.frozen
    assert verdict.lost == {}


def test_forget_removes_the_known_nodes():
    """After a change of source, the old names are not missed."""
    fleet = Fleet(10)
    fleet.tick()
    fleet.gone |= set(fleet.names[:9])
    fleet.guard.forget()
    assert fleet.tick().lost == {}


def test_a_clock_that_steps_back_prolongs_no_hold():
    """Three minutes held, then the clock is set back by an hour: two minutes remain, not 62."""
    fleet = Fleet(10)
    fleet.tick()
    fleet.frozen = {"n000", "n001", "n002"}
    for _ in range(4):
        assert fleet.tick().held.any()
    fleet.now -= 3600
    held = 0
    while fleet.tick().held.any():
        held += 1
        assert held < 5
    assert set(fleet.verdict.lost) == fleet.frozen


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["go", "come", "freeze", "thaw", "tick", "tick"]), st.sets(st.integers(0, 19), max_size=12)
    ),
    max_size=25,
)


@settings(max_examples=80, deadline=None)
@given(events=EVENTS)
def test_a_list_that_lost_more_than_a_fifth_is_refused_and_each_hold_ends(events):
    """For any sequence: no incomplete list is served, and no node is held beyond 300 s."""
    fleet = Fleet(20)
    fleet.tick()
    held_since: dict[str, float] = {}
    before = fleet.served
    for event, rows in events:
        names = {fleet.names[row] for row in rows}
        match event:
            case "go":
                fleet.gone |= names
            case "come":
                fleet.gone -= names
            case "freeze":
                fleet.frozen |= names
            case "thaw":
                fleet.frozen -= names
        verdict = fleet.tick()
        held = fleet.named(verdict.held)
        held_since = {name: held_since.get(name, fleet.now) for name in held}
        assert all(fleet.now - since <= LIMITS.max_staleness_s for since in held_since.values())
        if len(before - fleet.served) > LIMITS.outage_fraction * len(before):
            assert verdict.lost
        assert not set(verdict.lost) & fleet.served
        assert not (verdict.held & verdict.quarantined).any()
        assert (np.isnan(verdict.age_s) == ~(verdict.held | verdict.late)).all()
        before = fleet.served


# --- the log of findings ---------------------------------------------------------------------------------------------


def finding(node: str = "a", *, time: float = NOW, kind: FindingKind = FindingKind.JUMP, metric: str = "m") -> Finding:
    return Finding(kind, node, metric, time, f"at {time:.0f}", Remedy.REPORTED)


def test_equal_kind_node_and_metric_are_one_entry():
    """First and last time, count, and the newest reason; the newest entries come first."""
    log = FindingLog()
    log.add([finding(time=NOW), finding(time=NOW + 60), finding("b", time=NOW + 30)])
    log.add([finding(time=NOW + 120)])
    first, second = log.entries()
    assert (first.node, first.first_seen, first.last_seen, first.count) == ("a", NOW, NOW + 120, 3)
    assert (first.kind, first.remedy, first.reason) == ("jump", "reported", f"at {NOW + 120:.0f}")
    assert (second.node, second.count) == ("b", 1)
    assert log.counts()["jump"] == 4


def test_findings_of_one_tick_are_counted_in_any_order():
    """Three samples count as three, and the newest one has the reason, in any order of the response."""
    log = FindingLog()
    log.add([finding(time=NOW), finding(time=NOW + 60), finding(time=NOW + 30)])
    (entry,) = log.entries()
    assert (entry.count, entry.reason) == (3, f"at {NOW + 60:.0f}")


def test_a_sample_that_is_fetched_again_is_counted_once():
    """Fetches overlap by two minutes; a finding with a known time is the same observation."""
    log = FindingLog()
    for _ in range(3):
        log.add([finding(time=NOW), finding(time=NOW + 15)])
    (entry,) = log.entries()
    assert entry.count == 2
    assert log.counts()["jump"] == 2


def test_older_samples_of_a_backfill_are_counted():
    """A finding from before the first one is new, and moves first_seen back."""
    log = FindingLog()
    log.add([finding(time=NOW)])
    log.add([finding(time=NOW - 300)])
    (entry,) = log.entries()
    assert (entry.first_seen, entry.last_seen, entry.count) == (NOW - 300, NOW, 2)
    assert entry.reason == f"at {NOW:.0f}"


def test_after_a_clock_step_findings_are_counted():
    """The clock is set back by an hour: later findings are new, although their times were seen before."""
    log = FindingLog()
    log.add([finding(time=NOW - 7200), finding(time=NOW)])
    step = finding("", time=NOW - 3600, kind=FindingKind.CLOCK_STEP, metric="")
    log.add([step, finding(time=NOW - 3540)])
    entry = next(entry for entry in log.entries() if entry.kind == "jump")
    assert (entry.last_seen, entry.count) == (NOW - 3540, 3)


def test_each_kind_is_counted_from_the_start():
    """/metrics has a zero for kinds that never occurred."""
    assert FindingLog().counts() == dict.fromkeys([kind.value for kind in FindingKind], 0)


def test_the_log_keeps_the_entries_that_were_seen_last():
    """Beyond its capacity, the entries with the oldest last time are removed; the counters do not change."""
    log = FindingLog(capacity=10)
    for k in range(25):
        log.add([finding(f"n{k:02}", time=NOW + k)])
    assert [entry.node for entry in log.entries()] == [f"n{k:02}" for k in range(24, 14, -1)]
    assert log.counts()["jump"] == 25


def test_more_than_fifty_nodes_with_one_cause_are_one_entry():
    """It names three nodes and has the number of all; fifty nodes are still listed singly."""
    log = FindingLog()
    log.add(finding(f"n{k:03}") for k in reversed(range(50)))
    assert len(log.entries()) == 50
    log = FindingLog()
    log.add([*(finding(f"n{k:03}") for k in reversed(range(51))), finding("", time=NOW - 1)])
    (entry,) = log.entries()
    assert (entry.node, entry.metric) == ("", "m")
    assert entry.reason.startswith("51 nodes (n000, n001, n002, …)")
    assert log.counts()["jump"] == 52


def test_different_causes_are_not_combined():
    """30 nodes of one metric and 30 of another, or with another remedy, are sixty entries."""
    log = FindingLog()
    log.add(finding(f"n{k}", metric=metric) for k in range(30) for metric in ("m", "n"))
    assert len(log.entries()) == 60


def test_a_finding_about_many_nodes_counts_all_of_them():
    """The counters of /metrics have the number of nodes, the entry the number of observations."""
    log = FindingLog()
    log.add([FleetFinding(FindingKind.STALE, "", "m", NOW, "200 nodes", Remedy.REPORTED, 200)])
    assert log.counts()["stale"] == 200
    assert [entry.count for entry in log.entries()] == [1]


def test_entries_have_times_in_whole_seconds():
    """Unix seconds."""
    log = FindingLog()
    log.add([finding(time=NOW + 0.75)])
    (entry,) = log.entries()
    assert (entry.first_seen, entry.last_seen) == (int(NOW), int(NOW))


# --- renamed nodes ---------------------------------------------------------------------------------------------------


def test_renamed_nodes_did_not_leave() -> None:
    """A third of the fleet under new names is not an outage; a renamed node that was removed is not awaited."""
    fleet = Fleet(9)
    fleet.tick()
    fleet.guard.rename({"n000": "node-0", "n001": "node-1", "n002": "node-2", "n003": None})
    fleet.names = ["node-0", "node-1", "node-2", *fleet.names[4:]]
    assert () == fleet.tick().findings


def test_a_lost_node_is_awaited_under_its_new_name() -> None:
    """Its last time moves to the new name; that of an existing name takes precedence."""
    fleet = Fleet(10)
    fleet.tick()
    fleet.silence("n000", "n001", "n002")
    verdicts = [fleet.tick() for _ in range(7)]
    assert {"n000", "n001", "n002"} == verdicts[-1].lost.keys()
    fleet.guard.rename({"n000": "node-0", "n001": None})
    fleet.names = ["node-0", "n002", *fleet.names[3:]]
    fleet.silent_since["node-0"] = fleet.silent_since["n000"]
    assert {"node-0", "n002"} == fleet.tick().lost.keys()
