"""The audit file: committed data survives any end of the process, and files of other programs are never lost."""

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from agent.audit.database import AuditError
from agent.audit.log import Audit, AuditEntry, AuditOutcome, Filter, json_lines
from agent.cgroups.values import Quota
from agent.decision.analysis import AnalyzerState, RuleState
from agent.decision.ledger import InFlight, Ledger
from agent.model import Original

NOW = 1_700_000_000.0
UNLIMITED, HALF, FIFTH = Quota(None), Quota(50_000), Quota(20_000)


def opened(path: Path, **options: object) -> Audit:
    return Audit.open(path, now=NOW, **options)  # type: ignore[arg-type]


@pytest.fixture
def audit(tmp_path: Path):
    with_file = opened(tmp_path / "agent.db")
    yield with_file
    with_file.close()


def throttling(number: int = 0, **changes: object) -> AuditEntry:
    """An entry that throttles the container c<number>."""
    values = {
        "time": NOW + number,
        "kind": "throttle",
        "cycle": number,
        "pod": f"shop/pod-{number}",
        "uid": f"uid-{number}",
        "container": "main",
        "container_id": f"c{number}",
        "metric": "cpu_total_usage",
        "reason": "cpu.high",
        "planned": {"cpu": 500.0},
        "before": {"quota": None, "period": 100_000},
        "after": {"quota": 50_000, "period": 100_000},
    }
    return AuditEntry(**{**values, **changes})  # type: ignore[arg-type]


# --- entries ---------------------------------------------------------------------------------------------------------


def test_an_entry_is_recorded_before_its_action_with_all_values(audit: Audit):
    begun = audit.begin(throttling())
    assert (begun,) == audit.entries()
    assert AuditOutcome.BEGUN == begun.outcome
    done = audit.finish(begun, AuditOutcome.FAILED, now=NOW + 2, message="EINVAL")
    assert (done,) == audit.entries()
    assert (AuditOutcome.FAILED, "EINVAL", NOW + 2) == (done.outcome, done.message, done.finished)
    measured = audit.record_effect(done, {"cpu": 420.0}, now=NOW + 10)
    assert (measured,) == audit.entries()
    assert {("throttle", "failed"): 1} == audit.totals()


def test_entries_are_filtered_and_returned_newest_first(audit: Audit):
    for number in range(4):
        kind = "evict" if number % 2 else "throttle"
        begun = audit.begin(throttling(number, kind=kind, pod=f"{'shop' if number < 3 else 'bank'}/p{number}"))
        audit.finish(begun, AuditOutcome.DONE if number else AuditOutcome.GONE, now=NOW + number)

    def found(**filters: object) -> list[int]:
        return [each.cycle for each in audit.entries(Filter(**filters))]  # type: ignore[arg-type]

    assert [3, 2, 1, 0] == found()
    assert [3, 2] == found(limit=2)
    assert [1, 0] == found(before_id=3)
    assert [3, 1] == found(kind="evict")
    assert [0] == found(outcome="gone")
    assert [3] == found(namespace="bank")
    assert [2] == found(pod="shop/p2")
    assert [2, 1] == found(since=NOW + 1, until=NOW + 2)
    assert [3] == found(limit=0)


def test_a_batch_is_written_completely_or_not_at_all(audit: Audit):
    with audit.batch():
        for number in range(3):
            audit.begin(throttling(number))
    assert 3 == len(audit.entries())

    def interrupted() -> None:
        with audit.batch():
            audit.begin(throttling(3))
            raise InterruptedError

    with pytest.raises(AuditError):  # as is any failure of the system
        interrupted()
    assert 3 == len(audit.entries())
    audit.begin(throttling(4))
    assert [4, 2, 1, 0] == [each.cycle for each in audit.entries()]


def test_only_the_newest_entries_are_kept(tmp_path: Path):
    audit = opened(tmp_path / "agent.db", rows=50)
    with audit.batch():
        for number in range(200):
            audit.begin(throttling(number))
    kept = [each.cycle for each in audit.entries(Filter(limit=1000))]
    audit.close()
    assert list(range(199, 149, -1)) == kept


def test_entries_without_a_measured_effect(audit: Audit):
    """Entries that were done, released something and are old enough; not failed entries and entries of this cycle."""
    for number, outcome in enumerate(
        [AuditOutcome.DONE, AuditOutcome.FAILED, AuditOutcome.GONE, AuditOutcome.DONE, AuditOutcome.DONE]
    ):
        deed = throttling(number, planned={} if number == 3 else {"cpu": 1.0})
        audit.finish(audit.begin(deed), outcome, now=NOW)
    assert [2, 0] == [each.cycle for each in audit.entries_without_effect(since=NOW, before=NOW + 4)]
    assert [2] == [each.cycle for each in audit.entries_without_effect(since=NOW + 1, before=NOW + 4)]
    audit.record_effect(audit.entries_without_effect(since=NOW, before=NOW + 4)[0], {"cpu": 0.0}, now=NOW)
    assert [0] == [each.cycle for each in audit.entries_without_effect(since=NOW, before=NOW + 4)]


def test_evictions_that_were_done_unanswered_or_refused_count(audit: Audit):
    for number, outcome in enumerate([*AuditOutcome]):
        begun = audit.begin(throttling(number, kind="evict", owner="ReplicaSet/a"))
        if outcome != AuditOutcome.BEGUN:
            audit.finish(begun, outcome, now=NOW)
    audit.begin(throttling(99))
    counted = {list(AuditOutcome)[int(each.time - NOW)]: each.refused for each in audit.evictions().values()}
    assert {
        AuditOutcome.BEGUN: False,
        AuditOutcome.DONE: False,
        AuditOutcome.FAILED: True,
        AuditOutcome.UNANSWERED: False,
    } == counted
    assert not audit.evictions(after=max(audit.evictions()))


def test_each_entry_is_a_json_line_and_write_errors_are_ignored(tmp_path: Path):
    lines: list[str] = []
    audit = opened(tmp_path / "agent.db", tell=json_lines(lines.append))
    audit.finish(audit.begin(throttling()), AuditOutcome.DONE, now=NOW)
    audit.close()
    reported = [json.loads(line)["audit"] for line in lines]
    assert ["begun", "done"] == [each["outcome"] for each in reported]
    assert {"quota": None, "period": 100_000} == reported[0]["before"]

    def broken(_: str) -> None:
        raise BrokenPipeError

    audit = opened(tmp_path / "other.db", tell=json_lines(broken))
    audit.begin(throttling())
    audit.close()


# --- originals -------------------------------------------------------------------------------------------------------


def throttle(audit: Audit, found: Quota, wanted: Quota, **options: bool) -> AuditEntry:
    return audit.begin_change(throttling(), path="/pod/c0", found=found, intended=wanted, **options)


def test_the_first_quota_stays_the_original(audit: Audit):
    audit.finish_change(throttle(audit, UNLIMITED, HALF), AuditOutcome.DONE, now=NOW, written=HALF)
    begun = throttle(audit, HALF, FIFTH)
    (kept,) = audit.originals_by_key().values()
    assert (UNLIMITED, HALF, FIFTH, "/pod/c0") == (kept.original, kept.written, kept.intended, kept.path)
    assert (True, True, False) == (
        kept.written_by_agent(HALF),
        kept.written_by_agent(FIFTH),
        kept.written_by_agent(UNLIMITED),
    )
    audit.finish_change(begun, AuditOutcome.DONE, now=NOW, written=FIFTH)
    (kept,) = audit.originals_by_key().values()
    assert (UNLIMITED, FIFTH, False) == (kept.original, kept.written, kept.written_by_agent(HALF))
    assert {"c0": Original(None, 100_000)} == audit.original_quotas()


def test_a_quota_of_another_program_becomes_the_original(audit: Audit):
    audit.finish_change(throttle(audit, UNLIMITED, HALF), AuditOutcome.DONE, now=NOW, written=HALF)
    throttle(audit, Quota(80_000), HALF, replace_original=True)
    (kept,) = audit.originals_by_key().values()
    assert (Quota(80_000), None, HALF) == (kept.original, kept.written, kept.intended)


def test_originals_are_deleted_after_a_restore_or_the_end_of_the_container(audit: Audit):
    begun = throttle(audit, UNLIMITED, HALF)
    audit.finish_change(begun, AuditOutcome.DONE, now=NOW, written=None)
    assert not audit.originals_by_key()
    throttle(audit, UNLIMITED, HALF)
    audit.forget("c0")
    assert not audit.originals_by_key()


def test_saved_values_and_totals_survive_a_restart(tmp_path: Path):
    """A saved value that cannot be read counts as absent."""
    ledger = (InFlight("throttle", "shop/a", "u", NOW, NOW + 30.0, "c", 0.5, {"cpu": 500.0}),)
    memory = AnalyzerState({"cpu.high": RuleState(above=3, last_triggered=NOW)}, keeps_away=True)
    audit = opened(tmp_path / "agent.db")
    assert audit.load_value("ledger", Ledger) is None
    for value in ((), ledger):
        audit.save_value("ledger", value)
    audit.save_value("memory", memory)
    audit.close()
    audit = opened(tmp_path / "agent.db")
    assert ledger == audit.load_value("ledger", Ledger)
    assert memory == audit.load_value("memory", AnalyzerState)
    assert audit.load_value("memory", Ledger) is None
    audit.close()


def test_a_file_of_the_previous_schema_is_upgraded_without_loss(tmp_path: Path):
    path = tmp_path / "agent.db"
    audit = opened(path)
    audit.finish_change(throttle(audit, UNLIMITED, HALF), AuditOutcome.DONE, now=NOW, written=HALF)
    audit.close()
    older = sqlite3.connect(path)
    older.executescript(
        "ALTER TABLE originals DROP COLUMN knob;"
        "ALTER TABLE originals RENAME COLUMN key TO container_id;"
        "PRAGMA user_version = 1;"
    )
    older.close()
    audit = opened(path)
    assert not audit.notice
    assert {"c0": Original(None, 100_000)} == audit.original_quotas()
    audit.finish_change(throttle(audit, HALF, FIFTH), AuditOutcome.DONE, now=NOW, written=FIFTH)
    assert FIFTH == audit.originals_by_key()["c0"].written
    assert 2 == len(audit.entries())
    audit.close()


# --- the file --------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from agent.audit.log import Audit
from agent.audit.log import AuditEntry
from agent.cgroups.values import Quota
audit = Audit.open(Path(sys.argv[1]), now=0.0)
deed = AuditEntry(time=0.0, kind="throttle", container_id="c0", pod="shop/a")
audit.begin_change(deed, path="/c0", found=Quota(None), intended=Quota(20000))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_begun_entry_survives_a_kill(tmp_path: Path):
    path = tmp_path / "agent.db"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=Path.cwd(), timeout=60)
    assert -signal.SIGKILL == ended.returncode
    audit = opened(path)
    assert not audit.notice
    assert (Quota(None), Quota(20_000)) == (
        audit.originals_by_key()["c0"].original,
        audit.originals_by_key()["c0"].intended,
    )
    assert [AuditOutcome.BEGUN] == [each.outcome for each in audit.entries()]
    audit.close()


FULL = textwrap.dedent("""
    import resource, sys
    from pathlib import Path
    from agent.audit.log import Audit
    from agent.audit.database import AuditError
    from agent.audit.log import AuditEntry, AuditOutcome
    audit = Audit.open(Path(sys.argv[1]), now=0.0)
    first = audit.begin(AuditEntry(time=0.0, kind="throttle"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    for number in range(10_000):
        try:
            audit.begin(AuditEntry(time=0.0, kind="throttle", message="x" * 1000))
        except AuditError as error:
            print(error, error.hint)
            break
    else:
        sys.exit("it was never full")
    print(len(audit.entries()) > 0)
""")


@pytest.mark.slow
def test_a_full_disk_is_reported_before_any_action(tmp_path: Path):
    """A limit on the file size replaces the full disk: the kernel refuses the next byte in the same way."""
    run = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "agent.db")], capture_output=True, text=True, timeout=60
    )
    assert 0 == run.returncode, run.stderr
    error, readable = run.stdout.splitlines()
    assert "No pod is changed until the file can be written again" in error
    assert "True" == readable


def test_two_agents_cannot_open_the_same_file(audit: Audit):
    with pytest.raises(AuditError, match=r"agent\.db: database is locked") as refused:
        opened(audit.path)
    assert "only one process may" in refused.value.hint


def test_a_file_in_place_of_the_directory_is_reported(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError, match=r"Not a directory|File exists"):
        opened(tmp_path / "file" / "agent.db")


def foreign(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE recipes (name TEXT)")
    other.commit()
    other.close()


def damaged(path: Path) -> None:
    audit = opened(path)
    with audit.batch():
        for number in range(300):
            audit.begin(throttling(number))
    audit.close()
    content = bytearray(path.read_bytes())
    content[2 * 4096 : 6 * 4096] = os.urandom(4 * 4096)
    path.write_bytes(content)


def text(path: Path) -> None:
    path.write_text("this is not a database\n" * 10)


@pytest.mark.parametrize("begin_anew", [True, False])
def test_a_database_of_another_program_is_left_unchanged(tmp_path: Path, begin_anew: bool):
    path = tmp_path / "recipes.db"
    foreign(path)
    before = path.read_bytes()
    with pytest.raises(AuditError, match="is a database of another program") as raised:
        Audit.open(path, now=NOW, replace_damaged=begin_anew)
    assert "agent.state_file" in raised.value.hint
    assert path.read_bytes() == before
    assert ["recipes.db"] == [each.name for each in tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("make", "why"), [(damaged, "damaged"), (text, "not a SQLite database"), (Path.touch, "it is empty")]
)
def test_a_damaged_file_is_moved_aside(tmp_path: Path, make, why: str):
    path = tmp_path / "agent.db"
    make(path)
    before = path.read_bytes()
    audit = opened(path)
    assert why in audit.notice
    assert "agent.db.set-aside-20231114T221320Z" in audit.notice
    assert not audit.entries()
    audit.close()
    assert before == (tmp_path / "agent.db.set-aside-20231114T221320Z").read_bytes()
    text(path)
    opened(path).close()
    assert (tmp_path / "agent.db.set-aside-20231114T221320Z-1").exists()
    audit = opened(path)
    assert not audit.notice
    audit.close()


def test_a_damaged_file_behind_a_symbolic_link_is_moved_aside_at_its_target(tmp_path: Path):
    (tmp_path / "disk").mkdir()
    text(tmp_path / "disk" / "agent.db")
    (tmp_path / "agent.db").symlink_to(tmp_path / "disk" / "agent.db")
    opened(tmp_path / "agent.db").close()
    assert (tmp_path / "agent.db").is_symlink()
    assert (tmp_path / "disk" / "agent.db.set-aside-20231114T221320Z").exists()


def test_a_device_is_not_moved_aside(tmp_path: Path):
    device = tmp_path / "null"
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with pytest.raises(AuditError, match="is not a regular file") as raised:
        opened(device)
    assert "agent.state_file" in raised.value.hint
    assert stat.S_ISCHR(device.stat().st_mode)


def test_a_database_without_tables_is_used_by_the_agent_but_not_by_restore(tmp_path: Path):
    """A process may have ended while it created the file, but whether it had values is unknown."""
    path = tmp_path / "agent.db"
    begun = sqlite3.connect(path)
    begun.execute("PRAGMA journal_mode = WAL")
    begun.close()
    with pytest.raises(AuditError, match="it is a database without tables"):
        Audit.open(path, now=NOW, replace_damaged=False)
    audit = opened(path)
    assert not audit.notice
    audit.close()


def test_an_empty_file_does_not_mean_nothing_to_restore(tmp_path: Path):
    path = tmp_path / "agent.db"
    path.touch()
    with pytest.raises(AuditError, match="it is empty") as raised:
        Audit.open(path, now=NOW, replace_damaged=False)
    assert "move it to another directory" in raised.value.hint
    assert b"" == path.read_bytes()


def test_a_file_of_a_newer_version_is_left_unchanged(tmp_path: Path):
    path = tmp_path / "agent.db"
    opened(path).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.commit()
    newer.close()
    with pytest.raises(AuditError, match="newer load-watcher"):
        opened(path)
    assert ["agent.db"] == [each.name for each in tmp_path.iterdir()]
