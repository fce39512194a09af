"""A partial outage of the monitoring is told apart from nodes that leave; the findings' log stays small and exact."""

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
    """Nodes that give a sample every 15 s until something happens to them, and the guard that watches them."""

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
        """One step of the guard, `minutes` after the last."""
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


def test_a_healthy_fleet_has_nothing_to_say():
    """Nothing held, late, lost or found, tick after tick."""
    fleet = Fleet(10)
    for _ in range(5):
        verdict = fleet.tick()
        assert not (verdict.held | verdict.late | verdict.quarantined).any()
        assert np.isnan(verdict.age_s).all()
        assert (verdict.lost, verdict.findings) == ({}, ())


def test_a_fifth_of_the_nodes_may_leave_one_more_may_not():
    """20 of 100 vanish with a finding each; 21 of 100 are lost, and the list would be a remnant."""
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


def test_nodes_that_fall_behind_together_carry_their_age_until_they_are_stale():
    """A third of the fleet goes silent: served with age_s and a finding, minute by minute, until max_staleness."""
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


def test_one_node_that_falls_behind_alone_is_not_an_outage():
    """One of nine is late: that is for the rule of silence, not for the guard."""
    fleet = Fleet(9)
    fleet.tick()
    fleet.silence("n000")
    for _ in range(4):
        assert not fleet.tick().late.any()


def test_an_outage_split_over_two_ticks_is_one_outage():
    """15 of 100 vanish at one tick, 10 at the next: together more than a fifth, and all 25 are lost."""
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


def test_nodes_that_leave_minutes_apart_are_no_outage():
    """15 of 100 now and 10 three minutes later leave the list, each with a finding."""
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


def test_nodes_gone_from_the_history_count_as_vanished():
    """A mass that the history no longer lists is lost all the same, at the time of its last sample."""
    fleet = Fleet(10)
    fleet.tick()
    fleet.gone |= {"n000", "n001", "n002"}
    assert fleet.tick().lost == dict.fromkeys(["n000", "n001", "n002"], NOW + MINUTE - 5.0)


def test_one_node_is_a_whole_fleet():
    """When the only node vanishes, everything has."""
    fleet = Fleet(1)
    fleet.tick()
    fleet.gone.add("n000")
    assert set(fleet.tick().lost) == {"n000"}


def test_the_least_number_of_nodes_of_an_outage_can_be_set():
    """With outage_nodes = 2 one of three may leave; two may not, nor the only one."""
    limits = ReviewSettings(outage_nodes=2)
    for size, leave, lost in ((3, 1, 0), (3, 2, 2), (1, 1, 1)):
        fleet = Fleet(size, limits=limits)
        fleet.tick()
        fleet.gone |= set(fleet.names[:leave])
        assert len(fleet.tick().lost) == lost


def test_the_lost_are_forgotten_when_they_come_back():
    """The list is whole again as soon as no mass is missing, and a finding says so once."""
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


def test_an_outage_is_over_at_once_if_too_few_nodes_are_left():
    """Although the others departed only a minute ago."""
    fleet = Fleet(10)
    fleet.tick()
    fleet.gone = {"n000", "n001", "n002"}
    assert len(fleet.tick().lost) == 3
    fleet.gone = {"n000", "n001"}
    verdict = fleet.tick()
    assert verdict.lost == {}
    assert "nodes that returned now: 1; nodes still missing, left out: 2" in verdict.findings[0].reason


def test_a_fleet_that_really_shrank_is_believed_after_half_an_hour():
    """After forget_after the lost are given up, with one finding, and the list is served again."""
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


def test_a_frozen_node_is_quarantined_and_says_so_while_it_lasts():
    """One of ten stands still: not served, a finding each tick, served again when it moves."""
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


def test_a_mass_of_frozen_nodes_is_held_until_max_staleness_and_lost_after():
    """3 of 10 stand still: served with their age for 5 minutes, then quarantined, and the list is refused."""
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
    """15 of 100 freeze while 10 vanish: together a mass; the frozen are held, the vanished lost."""
    fleet = Fleet(100)
    fleet.tick()
    fleet.gone |= set(fleet.names[:10])
    fleet.frozen = set(fleet.names[10:25])
    verdict = fleet.tick()
    assert set(verdict.lost) == set(fleet.names[:10])
    assert fleet.named(verdict.held) == fleet.frozen


def test_a_held_node_that_vanishes_is_lost_at_once():
    """Its samples are too old to serve, however long it was held."""
    fleet = Fleet(10)
    fleet.tick()
    fleet.frozen = {"n000", "n001", "n002"}
    fleet.tick()
    fleet.gone |= fleet.frozen
    assert set(fleet.tick().lost) == fleet.frozen


def test_observe_quarantines_nobody_and_still_guards_the_list():
    """In observe mode a frozen node is reported; a remnant is refused all the same."""
    fleet = Fleet(10, limits=ReviewSettings(mode="observe"))
    fleet.tick()
    fleet.frozen = {"n000", "n001", "n002"}
    verdict = fleet.tick()
    assert not (verdict.held | verdict.quarantined).any()
    assert kinds(verdict) == [(FindingKind.FROZEN, name, Remedy.REPORTED) for name in sorted(fleet.frozen)]
    fleet.gone |= fleet.frozen
    assert set(fleet.tick().lost) == fleet.frozen


def test_what_is_stale_at_the_first_look_is_not_known():
    """A restart with old samples of nodes long gone does not refuse the list."""
    fleet = Fleet(10)
    fleet.silence(*fleet.names[:5])
    verdict = fleet.tick(minutes=10)
    assert (verdict.lost, verdict.findings) == ({}, ())
    assert fleet.tick().lost == {}


@pytest.mark.parametrize(("frozen", "held"), [(2, 0), (3, 3)])
def test_the_fleet_at_the_first_look_is_the_known_fleet(frozen, held):
    """At a restart two of ten frozen nodes are quarantined, three are held."""
    fleet = Fleet(10)
    fleet.frozen = set(fleet.names[:frozen])
    verdict = fleet.tick()
    assert (verdict.held.sum(), verdict.quarantined.sum()) == (held, frozen - held)


def test_a_node_that_is_late_at_the_first_look_is_one_of_all():
    """At a restart one late node of ten is no outage."""
    fleet = Fleet(10)
    fleet.silence("n000")
    assert not fleet.tick(minutes=3).late.any()


def test_new_nodes_do_not_hide_an_outage():
    """25 of 100 known nodes vanish in the tick in which 30 new ones come: the list lost a quarter all the same."""
    fleet = Fleet(130)
    fleet.gone = set(fleet.names[100:])
    fleet.tick()
    fleet.gone = set(fleet.names[:25])
    assert set(fleet.tick().lost) == fleet.gone


def test_new_nodes_are_no_event():
    """A fleet may triple in one tick; those that never were in the list take nothing from it when they are frozen."""
    fleet = Fleet(30)
    fleet.gone = set(fleet.names[10:])
    fleet.tick()
    fleet.gone = set()
    fleet.frozen = set(fleet.names[10:20])
    verdict = fleet.tick()
    assert fleet.named(verdict.quarantined) == fleet.frozen
    assert verdict.lost == {}


def test_forget_starts_anew():
    """After a change of source the old names are not missed."""
    fleet = Fleet(10)
    fleet.tick()
    fleet.gone |= set(fleet.names[:9])
    fleet.guard.forget()
    assert fleet.tick().lost == {}


def test_a_clock_that_steps_back_makes_no_hold_longer():
    """Three minutes held, then an hour back: the remaining two minutes pass, not sixty-two."""
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
def test_the_list_never_shrinks_by_more_than_a_fifth_unnoticed_and_holds_end(events):
    """Whatever nodes do: a list that lost more than a fifth in one tick is refused, and nobody is held beyond 300 s."""
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
    """First and last time, count, and the newest reason; entries come newest first."""
    log = FindingLog()
    log.add([finding(time=NOW), finding(time=NOW + 60), finding("b", time=NOW + 30)])
    log.add([finding(time=NOW + 120)])
    first, second = log.entries()
    assert (first.node, first.first_seen, first.last_seen, first.count) == ("a", NOW, NOW + 120, 3)
    assert (first.kind, first.remedy, first.reason) == ("jump", "reported", f"at {NOW + 120:.0f}")
    assert (second.node, second.count) == ("b", 1)
    assert log.counts()["jump"] == 4


def test_findings_of_one_tick_count_in_any_order():
    """Three samples are three, and the newest gives the reason, however they stand in the answer."""
    log = FindingLog()
    log.add([finding(time=NOW), finding(time=NOW + 60), finding(time=NOW + 30)])
    (entry,) = log.entries()
    assert (entry.count, entry.reason) == (3, f"at {NOW + 60:.0f}")


def test_the_same_sample_fetched_again_is_not_counted_again():
    """Fetches overlap by two minutes; a finding at a time already seen is the same observation."""
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


def test_after_a_clock_step_findings_count_again():
    """The clock goes back an hour: what follows is new, though its times lie in what was seen before."""
    log = FindingLog()
    log.add([finding(time=NOW - 7200), finding(time=NOW)])
    step = finding("", time=NOW - 3600, kind=FindingKind.CLOCK_STEP, metric="")
    log.add([step, finding(time=NOW - 3540)])
    entry = next(entry for entry in log.entries() if entry.kind == "jump")
    assert (entry.last_seen, entry.count) == (NOW - 3540, 3)


def test_every_kind_is_counted_from_the_start():
    """/metrics shows a zero for what never happened, not nothing."""
    assert FindingLog().counts() == dict.fromkeys([kind.value for kind in FindingKind], 0)


def test_the_log_keeps_the_entries_last_seen():
    """Beyond its capacity the entries that were last seen longest ago go; the counters do not."""
    log = FindingLog(capacity=10)
    for k in range(25):
        log.add([finding(f"n{k:02}", time=NOW + k)])
    assert [entry.node for entry in log.entries()] == [f"n{k:02}" for k in range(24, 14, -1)]
    assert log.counts()["jump"] == 25


def test_more_than_fifty_nodes_with_the_same_trouble_are_one_entry():
    """It names three and counts all; fifty are still listed singly."""
    log = FindingLog()
    log.add(finding(f"n{k:03}") for k in reversed(range(50)))
    assert len(log.entries()) == 50
    log = FindingLog()
    log.add([*(finding(f"n{k:03}") for k in reversed(range(51))), finding("", time=NOW - 1)])
    (entry,) = log.entries()
    assert (entry.node, entry.metric) == ("", "m")
    assert entry.reason.startswith("51 nodes (n000, n001, n002, …)")
    assert log.counts()["jump"] == 52


def test_different_troubles_are_not_summed_up():
    """30 nodes of one metric and 30 of another, or with another remedy, are sixty entries."""
    log = FindingLog()
    log.add(finding(f"n{k}", metric=metric) for k in range(30) for metric in ("m", "n"))
    assert len(log.entries()) == 60


def test_a_finding_about_many_nodes_counts_them_all():
    """The counters of /metrics say how many nodes were found, the entry how many times."""
    log = FindingLog()
    log.add([FleetFinding(FindingKind.STALE, "", "m", NOW, "200 nodes", Remedy.REPORTED, 200)])
    assert log.counts()["stale"] == 200
    assert [entry.count for entry in log.entries()] == [1]


def test_entries_show_whole_seconds_of_the_real_times():
    """Unix seconds on the wire."""
    log = FindingLog()
    log.add([finding(time=NOW + 0.75)])
    (entry,) = log.entries()
    assert (entry.first_seen, entry.last_seen) == (int(NOW), int(NOW))


# --- other names -----------------------------------------------------------------------------------------------------


def test_nodes_that_get_other_names_did_not_leave() -> None:
    """A third of the fleet under new names is no outage, and one that is gone for good is not waited for."""
    fleet = Fleet(9)
    fleet.tick()
    fleet.guard.rename({"n000": "node-0", "n001": "node-1", "n002": "node-2", "n003": None})
    fleet.names = ["node-0", "node-1", "node-2", *fleet.names[4:]]
    assert () == fleet.tick().findings


def test_who_was_lost_is_waited_for_under_the_new_name() -> None:
    """A lost node's departure goes along; that of a name which was there already counts more."""
    fleet = Fleet(10)
    fleet.tick()
    fleet.silence("n000", "n001", "n002")
    verdicts = [fleet.tick() for _ in range(7)]
    assert {"n000", "n001", "n002"} == verdicts[-1].lost.keys()
    fleet.guard.rename({"n000": "node-0", "n001": None})
    fleet.names = ["node-0", "n002", *fleet.names[3:]]
    fleet.silent_since["node-0"] = fleet.silent_since["n000"]
    assert {"node-0", "n002"} == fleet.tick().lost.keys()
