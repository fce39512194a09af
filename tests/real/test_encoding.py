"""The bytes of remote write, and the generated load, without a server."""

import numpy as np
import pytest

from tests.real import remote_write
from tests.real.fleet import make_fleet, node_exporter_series
from tests.real.remote_write import Series


def test_a_write_request_is_a_valid_protobuf():
    # Computed by hand from the message definition; 1700000000000 ms is the varint 80 d0 95 ff bc 31.
    body = remote_write.write_request([Series({"b": "2", "__name__": "m"}, [1.7e9], [1.0])])
    label_name = bytes.fromhex("0a0d 0a08") + b"__name__" + bytes.fromhex("1201") + b"m"
    label_b = bytes.fromhex("0a06 0a01") + b"b" + bytes.fromhex("1201") + b"2"
    sample = bytes.fromhex("1210 09 000000000000f03f 10 80d095ffbc31")
    series = label_name + label_b + sample
    assert b"\x0a" + bytes([len(series)]) + series == body


def test_series_of_different_lengths_keep_their_order():
    series = [Series({"n": str(n)}, [1.7e9 + k for k in range(n)], [float(n)] * n) for n in (2, 1, 2)]
    together = remote_write.write_request(series)
    assert b"".join(remote_write.write_request([one]) for one in series) == together


def test_requests_are_split_at_two_thousand_series():
    bodies = list(remote_write.requests([Series({"n": str(n)}, [1.7e9], [0.0]) for n in range(4001)]))
    assert 3 == len(bodies)


def test_a_long_body_is_split_into_literals_of_64_kilobytes():
    body = bytes(range(256)) * 257
    encoded = remote_write.snappy_literals(body)
    assert remote_write.varint(len(body)) == encoded[:3]
    assert b"\xf4\xff\xff" == encoded[3:6]
    assert body == encoded[6 : 6 + 65536] + encoded[6 + 65536 + 3 :]


def test_times_in_milliseconds_are_refused():
    with pytest.raises(ValueError, match="unix seconds"):
        remote_write.write_request([Series({}, [1.7e12], [0.0])])


def test_a_series_with_too_few_values_is_refused():
    with pytest.raises(ValueError, match="2 times, but 1 values"):
        remote_write.write_request([Series({}, [1.7e9, 1.7e9 + 15], [0.0])])


def test_the_same_seed_gives_the_same_load_and_another_gives_another():
    first, again, other = (make_fleet(10, start=0, end=900, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.cpu, again.cpu)
    assert not np.array_equal(first.cpu, other.cpu)


def test_the_load_ends_at_the_end_and_stays_within_its_bounds():
    fleet = make_fleet(["a", "b"], start=1000, end=1907, step=15)
    assert 1907 == fleet.times[-1]
    assert 1000 <= fleet.times[0] < 1015
    for ratios in (fleet.cpu, fleet.memory, fleet.disk):
        assert ratios.min() >= 0
        assert ratios.max() <= 1
    assert np.ptp(fleet.cpu, axis=1).min() > 0.01


def test_counters_never_decrease():
    fleet = make_fleet(20, start=1.7e9, end=1.7e9 + 900)
    for series in node_exporter_series(fleet):
        if series.labels["__name__"].endswith("_total"):
            assert np.diff(np.asarray(series.values)).min() >= 0
