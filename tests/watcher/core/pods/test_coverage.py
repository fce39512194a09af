"""On which nodes the usage of pods is known, and why it is not on others."""

from watcher.core.pods.coverage import PodCoverage, PodGaps

NOW = 1_700_000_000.0
COVERAGE = PodCoverage({"a": NOW, "b": NOW - 300.0}, {"c": "not scraped", "e": "refused", "d": "not scraped"})


def test_a_reading_is_valid_for_five_minutes():
    assert [COVERAGE.known("b", NOW + later) for later in (0.0, 0.1)] == [True, False]
    assert not COVERAGE.known("c", NOW)


def test_the_message_has_each_cause_with_its_nodes():
    assert COVERAGE.message() == "no pod usage for 3 of 5 nodes; c, d: not scraped; e: refused"
    assert COVERAGE.message(9).startswith("no pod usage for 3 of 9 nodes; ")
    assert PodCoverage({"a": NOW}).message() == ""


def test_the_coverage_of_some_nodes_has_only_these():
    assert COVERAGE.on(None) is COVERAGE
    assert COVERAGE.on({"b", "e"}) == PodCoverage({"b": NOW - 300.0}, {"e": "refused"})


def test_a_missing_node_has_no_usage_if_no_pods_run_on_it():
    """Otherwise its usage is unknown; a cause that is known already is kept."""
    gaps = PodGaps("no readings", {"c": "unreachable", "f": "unreachable"}, hosting=frozenset({"c", "f", "g"}))
    found = COVERAGE.completed(("h", "g", "f", "c"), gaps, now=NOW)
    assert found.measured == {**COVERAGE.measured, "h": NOW}
    assert found.unknown == {"c": "not scraped", "f": "unreachable", "g": "no readings"}
    unsure = COVERAGE.completed(("h",), PodGaps("no readings"), now=NOW)
    assert (unsure.measured, unsure.unknown) == (COVERAGE.measured, {"h": "no readings"})
