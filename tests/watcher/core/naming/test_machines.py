"""Readings of CPU counters, which show whether series are of one machine."""

from watcher.core.naming.machines import OF_TIME, IdleReading, idle_readings


def test_a_reading_has_idle_seconds_and_their_time():
    one, other = ({"instance": f"10.0.0.{number}:9100", "job": "node"} for number in (1, 2))
    rows = [
        ({"__name__": "node_cpu_seconds_total", "mode": "idle", **one}, 90_000.0),
        ({"mode": "idle", **other}, 40_000.0),
        ({"__name__": "time", "mode": OF_TIME, **one}, 1_000.0),
    ]
    assert idle_readings(rows) == [IdleReading(rows[0][0], 90_000.0, 1_000.0)]
