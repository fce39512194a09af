"""Traces: written records are read again, equal records give equal bytes, and errors name their place."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.traces.files import open_writer, read_trace
from lab.traces.parsing import TraceError
from lab.traces.records import (
    Begin,
    BindRecord,
    EndRecord,
    LoadRecord,
    NodeRecord,
    PodRecord,
    Record,
    RemoveRecord,
    UsageRecord,
)

GIB = 2**30
BEGUN = 1_700_000_000.0

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=12)
NAMES = TEXTS.filter(bool)
SHORT = st.text("abc-1", min_size=1, max_size=5)
CORES = st.integers(0, 10**8).map(lambda size: size / 10_000)
SOME_CORES = st.integers(1, 10**8).map(lambda size: size / 10_000)
BYTES = st.integers(0, 2**49)
THOUSANDTHS = st.integers(0, 10**9).map(lambda size: size / 1000)


@st.composite
def traces(draw: st.DrawFn) -> list[Record]:
    """Nodes first, then the events of nodes and pods, ordered by time."""
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    uids = draw(st.lists(NAMES, max_size=3, unique=True))
    begun = draw(THOUSANDTHS)
    found: list[Record] = [Begin(begun, draw(TEXTS))] if draw(st.booleans()) else []
    for name in names:
        allocatable = draw(st.none() | CORES), draw(st.none() | BYTES)
        found.append(
            NodeRecord(begun, name, draw(SOME_CORES), draw(BYTES) + 1, *allocatable, draw(st.integers(0, 300)))
        )
    found += [draw(pods(begun, uid)) for uid in uids]
    later = sorted(begun + after for after in draw(st.lists(THOUSANDTHS, max_size=8)))
    found += [draw(happening(round(time, 3), names, uids)) for time in later]
    if draw(st.booleans()):
        found.append(EndRecord(found[-1].time))
    return found


@st.composite
def pods(draw: st.DrawFn, time: float, uid: str) -> Record:
    requests, limits = (draw(CORES), draw(BYTES)), (draw(st.none() | CORES), draw(st.none() | BYTES))
    lifetime, priority = draw(st.none() | THOUSANDTHS), draw(st.integers(-(10**9), 2 * 10**9))
    return PodRecord(time, uid, f"{draw(SHORT)}/{draw(SHORT)}", *requests, *limits, lifetime, priority, draw(TEXTS))


@st.composite
def happening(draw: st.DrawFn, time: float, names: list[str], uids: list[str]) -> Record:
    amounts = draw(st.none() | CORES), draw(st.none() | BYTES)
    node = draw(st.sampled_from(names))
    if not uids or draw(st.booleans()):
        return LoadRecord(time, node, *amounts)
    uid = draw(st.sampled_from(uids))
    kinds: list[Record] = [UsageRecord(time, uid, *amounts), BindRecord(time, uid, node), RemoveRecord(time, uid)]
    return draw(st.sampled_from(kinds))


def write(path: Path, records: list[Record]) -> bytes:
    with open_writer(path) as writer:
        for record in records:
            writer.write(record)
    return path.read_bytes()


@given(records=traces(), name=st.sampled_from(["a.csv", "a.csv.gz"]))
def test_written_records_are_read_again(tmp_path_factory: pytest.TempPathFactory, records: list[Record], name: str):
    path = tmp_path_factory.mktemp("trace") / name
    write(path, records)
    assert records == list(read_trace(path))


@given(records=traces())
def test_a_trace_that_was_read_is_written_to_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record]
):
    directory = tmp_path_factory.mktemp("trace")
    first = write(directory / "a.csv.gz", records)
    assert first == write(directory / "another.csv.gz", list(read_trace(directory / "a.csv.gz")))


def test_a_trace_is_a_table(tmp_path: Path):
    records: list[Record] = [
        Begin(BEGUN, "an example"),
        NodeRecord(BEGUN, "node-1", 8.0, 32 * GIB, 7.84, 30 * GIB),
        LoadRecord(BEGUN, "node-1", 0.4, GIB),
        PodRecord(BEGUN + 60, "u1", "shop/cart-1", 0.5, GIB // 2, 1.0, GIB, 600.0, 9500, "ReplicaSet/cart"),
        UsageRecord(BEGUN + 60.5, "u1", 0.2),
        BindRecord(BEGUN + 61, "u1", "node-1"),
        RemoveRecord(BEGUN + 661, "u1"),
        RemoveRecord(BEGUN + 700, node="node-1"),
        EndRecord(BEGUN + 900),
    ]
    assert (
        "time,record,node,uid,cpu,memory,pod,cpu_limit,memory_limit,lifetime,priority,owner,allocatable_cpu,"
        "allocatable_memory,pods,note\n"
        "1700000000,trace,,,,,,,,,,,,,,an example\n"
        "1700000000,node,node-1,,8,34359738368,,,,,,,7.84,32212254720,,\n"
        "1700000000,load,node-1,,0.4,1073741824,,,,,,,,,,\n"
        "1700000060,pod,,u1,0.5,536870912,shop/cart-1,1,1073741824,600,9500,ReplicaSet/cart,,,,\n"
        "1700000060.5,usage,,u1,0.2,,,,,,,,,,,\n"
        "1700000061,bind,node-1,u1,,,,,,,,,,,,\n"
        "1700000661,remove,,u1,,,,,,,,,,,,\n"
        "1700000700,remove,node-1,,,,,,,,,,,,,\n"
        "1700000900,end,,,,,,,,,,,,,,\n"
    ) == write(tmp_path / "trace.csv", records).decode()


def test_columns_may_be_in_any_order_and_may_be_missing(tmp_path: Path):
    path = tmp_path / "trace.csv"
    path.write_text("\ufeffrecord,memory,node,cpu,time\r\nnode,1e9,n,2,5\r\n,,,,\r\nload,,n,1,6\r\n", encoding="utf-8")
    assert [NodeRecord(5.0, "n", 2.0, 10**9), LoadRecord(6.0, "n", 1.0)] == list(read_trace(path))


def test_the_example_of_the_documentation_is_valid(tmp_path: Path):
    text = (Path(__file__).parents[3] / "docs/concepts/simulation.md").read_text("utf-8")
    path = tmp_path / "trace.csv"
    path.write_text(text.partition("```csv\n")[2].partition("```")[0])
    assert 7 == len(list(read_trace(path)))


HEADER = "time,record,node,uid,cpu,memory,pod,lifetime\n"
NODE = "5,node,n,,2,1000,,\n"
POD = "5,pod,,u,1,10,a/b,\n"


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "", "the trace is empty: no header"),
        (HEADER, "", "the trace is empty: no record after the header"),
        (HEADER + "5,end,,,,,,\n", "", "the trace is empty: no node record"),
        ("time;record;node\n", ", line 1", "columns are separated by semicolons"),
        ("time,record,nodes\n", ", line 1, column nodes", "unknown column"),
        ("time,node,time\n", ", line 1, column time", "duplicate column"),
        ("time,node\n", ", line 1, column record", "missing in the header"),
        (HEADER + NODE + "6,load,n\n", ", line 3", "3 columns, but the header has 8"),
        (HEADER + NODE + '6,load,"n\n', ", line 3", "invalid CSV: unexpected end of data"),
        (HEADER + "5,nodes,n,,2,1000,,\n", ", line 2, column record", "unknown record 'nodes'"),
        (HEADER + NODE + "4,load,n,,,,,\n", ", line 3, column time", "4 is before the previous record (5.000)"),
        (HEADER + "x,node,n,,2,1000,,\n", ", line 2, column time", "'x' is not a number"),
        (HEADER + "5,node,n,,nan,1000,,\n", ", line 2, column cpu", "'nan' is out of range"),
        (HEADER + "5,node,n,,1_0,1000,,\n", ", line 2, column cpu", "'1_0' is out of range"),
        (HEADER + "5,node,n,,-1,1000,,\n", ", line 2, column cpu", "'-1' is out of range"),
        (HEADER + "5,node,n,,2,1.5,,\n", ", line 2, column memory", "'1.5' is not a whole number"),
        (HEADER + "5,node,n,,0,1000,,\n", ", line 2, column cpu", "the size of a node cannot be 0"),
        (HEADER + "5,node,n,,,1000,,\n", ", line 2, column cpu", "is empty, but required in a record node"),
        (HEADER + "5,node,n,u,2,1000,,\n", ", line 2, column uid", "'u' is not allowed in a record node"),
        (HEADER + NODE + "5,load,m,,1,,,\n", ", line 3, column node", "unknown node 'm'"),
        (HEADER + NODE + "5,usage,,u,1,,,\n", ", line 3, column uid", "unknown pod 'u'"),
        (HEADER + NODE + POD + POD, ", line 4, column uid", "duplicate pod uid 'u'"),
        (HEADER + NODE + "5,pod,,u,1,10,b,\n", ", line 3, column pod", "'b' is not a pod name"),
        (HEADER + NODE + "5,remove,,,,,,\n", ", line 3, column node", "but both are empty"),
        (HEADER + NODE + POD + "5,remove,n,u,,,,\n", ", line 4, column uid", "but both are set"),
        (HEADER + NODE + "6,remove,n,,,,,\n7,load,n,,,,,\n", ", line 4, column node", "unknown node 'n'"),
        (HEADER + NODE + "6,trace,,,,,,\n", ", line 3, column record", "trace is not the first record"),
        (HEADER + NODE + "6,end,,,,,,\n6,load,n,,,,,\n", ", line 4, column record", "record load after end"),
        (HEADER + NODE + '5,pod,,u,1,10,"a/b\n",x\n', ", line 4, column lifetime", "'x' is not a number"),
    ],
)  # fmt: skip
def test_an_error_names_its_place_and_the_problem(tmp_path: Path, text: str, where: str, what: str):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as raised:
        list(read_trace(path))
    assert str(raised.value).startswith(f"{path}{where}: ")
    assert what in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.csv", b"time,record\n\xff", "invalid UTF-8"),
        ("a.csv.gz", b"time,record\n", "invalid gzip data"),
        ("a.csv.gz", gzip.compress((HEADER + NODE).encode(), mtime=0)[:-6], "the file is truncated"),
        ("a.csv.gz", gzip.compress(b"", mtime=0)[:-8] + b"12345678", "invalid gzip data: CRC check failed"),
    ],
)
def test_a_file_that_is_not_a_trace_is_an_error(tmp_path: Path, name: str, content: bytes, what: str):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TraceError, match=what):
        list(read_trace(path))


def test_a_missing_file_is_an_error(tmp_path: Path):
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        list(read_trace(tmp_path / "none.csv"))


def test_records_are_returned_while_the_file_is_read(tmp_path: Path):
    """A later error does not affect them."""
    path = tmp_path / "a.csv"
    path.write_text(HEADER + NODE + "6,load,m,,,,,\n")
    records = read_trace(path)
    assert NodeRecord(5.0, "n", 2.0, 1000) == next(records)
    with pytest.raises(TraceError, match="line 3"):
        next(records)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_flushed_records_can_be_read_while_the_writer_continues(tmp_path: Path, name: str):
    path = tmp_path / name
    with open_writer(path) as writer:
        writer.write(NodeRecord(5.0, "n", 2.0, 1000))
        writer.flush()
        assert NodeRecord(5.0, "n", 2.0, 1000) == next(read_trace(path))


def test_the_writer_refuses_records_before_the_last_time(tmp_path: Path):
    with open_writer(tmp_path / "a.csv") as writer:
        writer.write(EndRecord(6.0))
        with pytest.raises(ValueError, match="is before the previous record"):
            writer.write(EndRecord(5.0))


def test_the_writer_refuses_records_that_could_not_be_read(tmp_path: Path):
    with open_writer(tmp_path / "a.csv") as writer, pytest.raises(ValueError, match="carriage return"):
        writer.write(Begin(5.0, "a\rb"))
