"""The encoding that a client gets, and whether it has the document already."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.core.publishing.compression import Encoding
from watcher.platform.http.negotiation import choose, choose_plain, if_none_match_matches

ALL = tuple(Encoding)
IDENTITY, GZIP, ZSTD = Encoding.IDENTITY, Encoding.GZIP, Encoding.ZSTD


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, IDENTITY),
        ("", IDENTITY),
        ("gzip", GZIP),
        ("GZIP", GZIP),
        ("x-gzip", GZIP),
        ("zstd", ZSTD),
        ("gzip, zstd", ZSTD),  # at equal weight, the smaller one
        ("gzip, deflate, br, zstd", ZSTD),  # browsers
        ("gzip, deflate", GZIP),  # requests, and Go's transport without the deflate
        ("gzip;q=1.0, zstd;q=0.5", GZIP),
        ("gzip;q=0.5, zstd;q=0.9, identity;q=0.1", ZSTD),
        ("gzip;q=0.5, identity", IDENTITY),
        ("identity, gzip", GZIP),
        ("br", IDENTITY),  # encodings that are not listed are not used, except identity
        ("br, identity;q=0.001", IDENTITY),
        ("gzip;q=0", IDENTITY),
        ("gzip;q=0, zstd;q=0, identity;q=0", None),
        ("identity;q=0", None),
        ("br, identity;q=0", None),
        ("*", ZSTD),
        ("*;q=0", None),
        ("*;q=0, gzip", GZIP),
        ("gzip;q=0, *", ZSTD),
        ("zstd;q=0, gzip;q=0, *", IDENTITY),
        ("identity;q=0, *;q=0.5", ZSTD),
        ("gzip ; q=0.8 , zstd ;q=0.7", GZIP),
        ("gzip;q=0.8;x=1", GZIP),
        ("gzip;q=lots", IDENTITY),  # invalid, so not used
        ("gzip;q=1.5", IDENTITY),
        ("gzip;q=", IDENTITY),
        (",,gzip,,", GZIP),
        ("gzip" + " " * 500, GZIP),
    ],
)
def test_the_coding_of_a_long_body(accept, expected):
    """RFC 9110, section 12.5.3."""
    assert expected == choose(accept, ALL)


def test_only_available_encodings_are_chosen():
    """/metrics has no zstd."""
    assert GZIP == choose("zstd, gzip;q=0.5", (IDENTITY, GZIP))
    assert IDENTITY == choose("zstd", (IDENTITY, GZIP))
    assert choose("zstd, identity;q=0", (IDENTITY, GZIP)) is None


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, IDENTITY),
        ("gzip, zstd", IDENTITY),
        ("gzip, identity;q=0.001", IDENTITY),
        ("gzip, identity;q=0", GZIP),
        ("zstd, *;q=0", ZSTD),
        ("identity;q=0", None),
    ],
)
def test_the_coding_of_a_short_body(accept, expected):
    """Plain, unless the client refuses that."""
    assert expected == choose_plain(accept)


@given(st.text(max_size=300))
def test_any_header_gets_a_result(accept):
    assert choose(accept, ALL) in (*ALL, None)
    assert choose_plain(accept) in (*ALL, None)
    assert if_none_match_matches(accept, '"t1"') in (True, False)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('"t1"', True),
        ('W/"t1"', True),
        ('"a", "t1"', True),
        ('"a","t1","b"', True),
        ('W/"a", W/"t1"', True),
        ("*", True),
        (" * ", True),
        ('"a"', False),
        ('"t1x"', False),
        ('"xt1"', False),
        ("t1", False),
        ('"T1"', False),
        ("", False),
        ('"a, "t1', False),
    ],
)
def test_if_none_match_uses_the_weak_comparison(header, expected):
    """RFC 9110, section 8.8.3.2."""
    assert expected is if_none_match_matches(header, '"t1"')
