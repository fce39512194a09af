"""Tables in the layout of Alibaba's cluster-trace-v2018 become a trace."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lab.traces.alibaba import LARGEST, convert
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

TABLES = {
    "machine_meta": """
m_1,0,1,a,96,100,USING
m_1,5,1,a,96,100,USING
m_2,0,1,b,64,50,USING
m_3,0,1,b,64,50,USING
""",
    "machine_usage": """
m_1,0,40,50,,,1.0,1.0,3
m_1,60,60,50,,,1.0,1.0,3
m_1,300,10,,,,,,
m_1,310,10,40,,,,,
m_2,3600,90,90,,,,,
m_3,0,90,90,,,,,
""",
    "container_meta": """
c_1,m_1,0,app_1,started,400,800,3.13
c_1,m_1,250,app_1,started,400,800,3.13
c_2,m_2,120,app_2,allocated,800,800,6.25
c_2,m_2,500,app_2,stopped,800,800,6.25
c_3,m_3,0,app_2,started,800,800,6.25
""",
    "container_usage": """
c_1,m_1,0,50,80,,,,,,
c_1,m_1,120,100,80,,,,,,
c_1,m_1,310,25,,,,,,,
c_1,m_1,320,25,60,,,,,,
c_2,m_2,200,10,10,,,,,,
c_3,m_3,0,10,10,,,,,,
""",
}


@pytest.fixture(name="tables")
def _tables(tmp_path: Path) -> Path:
    for name, text in TABLES.items():
        (tmp_path / f"{name}.csv").write_text(text.lstrip())
    return tmp_path


def size(share: float) -> int:
    return round(LARGEST * share / 100.0)


def test_machines_become_nodes_and_containers_pods(tables: Path):
    memory = size(3.13)
    expected: list[Record] = [
        Begin(0.0, "Alibaba cluster-trace-v2018: 2 machines, 2 containers, from hour 0"),
        NodeRecord(0.0, "m_1", 96.0, LARGEST),
        NodeRecord(0.0, "m_2", 64.0, LARGEST // 2),
        PodRecord(0.0, "c_1", "app-1/c-1", 4.0, memory, 8.0, memory, owner="ReplicaSet/app-1"),
        BindRecord(0.0, "c_1", "m_1"),
        UsageRecord(0.0, "c_1", 3.0, round(0.8 * memory)),
        LoadRecord(0.0, "m_1", 45.0, round(LARGEST / 2 - 0.8 * memory)),
        PodRecord(120.0, "c_2", "app-2/c-2", 8.0, size(6.25), 8.0, size(6.25), owner="ReplicaSet/app-2"),
        BindRecord(120.0, "c_2", "m_2"),
        UsageRecord(120.0, "c_2", 0.8, round(0.1 * size(6.25))),
        UsageRecord(300.0, "c_1", 1.0, round(0.6 * memory)),
        LoadRecord(300.0, "m_1", 8.6, round(0.4 * LARGEST - 0.6 * memory)),
        RemoveRecord(500.0, "c_2"),
        EndRecord(3600.0),
    ]
    assert expected == list(convert(tables, machines=2, start=0.0, hours=1.0))


def test_it_is_a_trace(tables: Path, tmp_path: Path):
    records = list(convert(tables, machines=3, start=0.0, hours=1.0))
    with open_writer(tmp_path / "trace.csv.gz") as writer:
        for record in records:
            writer.write(record)
    assert records == list(read_trace(tmp_path / "trace.csv.gz"))


def test_later_hours_begin_with_what_is_there(tables: Path):
    records = list(convert(tables, machines=2, start=1.0, hours=1.0))
    assert ["c_1"] == [each.uid for each in records if isinstance(each, PodRecord)]
    assert {3600.0} == {each.time for each in records if isinstance(each, (PodRecord, BindRecord, LoadRecord))}


def test_compressed_tables_are_read_too(tables: Path):
    plain = list(convert(tables, machines=2, start=0.0, hours=1.0))
    for path in tables.glob("*.csv"):
        (tables / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert plain == list(convert(tables, machines=2, start=0.0, hours=1.0))


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("machine_meta.csv", "m_1,0,1,a,x,100\n", "machine_meta.csv, line 1, column cpu_num: 'x' is not a number"),
        ("machine_meta.csv", "m_1,0,1\n", "line 1, column cpu_num: only 3 columns"),
        ("machine_meta.csv", "m_1,0,1,a,,\n", "machine_meta has no machine with a size"),
        ("container_usage.csv", "c_1,m_1,0,5,5\nc_1,m_1,nan,5,5\n", "line 2, column time_stamp: 'nan' is not a number"),
        ("container_meta.csv", '"c_1\n', "cannot be read"),
        ("machine_usage.csv", None, "neither machine_usage.csv nor machine_usage.csv.gz found"),
    ],
)
def test_a_bad_table_is_named(tables: Path, name: str, text: str | None, what: str):
    if text is None:
        (tables / name).unlink()
    else:
        (tables / name).write_text(text)
    with pytest.raises(TraceError) as raised:
        list(convert(tables, machines=2, start=0.0, hours=1.0))
    assert what in str(raised.value)
