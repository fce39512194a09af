"""Kubernetes' quantities: each suffix, exactly, and invalid ones."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.kube_rules import canonical
from watcher.core.kubernetes.quantity import nano

NANO = 10**9


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        ("0", 0),
        ("4", 4),
        ("-1", -1),
        ("+1", 1),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("123456789n", Fraction(123456789, NANO)),
        ("1500u", Fraction(1500, 10**6)),
        ("15800m", Fraction(158, 10)),
        ("4k", 4000),
        ("2M", 2 * 10**6),
        ("2G", 2 * 10**9),
        ("2T", 2 * 10**12),
        ("2P", 2 * 10**15),
        ("2E", 2 * 10**18),
        ("1Ki", 1024),
        ("1.5Mi", 1536 * 1024),
        ("16Gi", 16 * 2**30),
        ("1Ti", 2**40),
        ("1Pi", 2**50),
        ("1Ei", 2**60),
        ("1e3", 1000),
        ("12E2", 1200),
        ("1.5e-3", Fraction(15, 10**4)),
        ("1E", 10**18),
        (7, 7),
        (0.25, Fraction(1, 4)),
        (1e21, 2**63 - 1),
    ],
)
def test_every_suffix_is_read_exactly(quantity, value):
    """As whole billionths without loss; a JSON number is valid as well."""
    assert value * NANO == nano(quantity)


@pytest.mark.parametrize(("quantity", "billionths"), [("0.1n", 1), ("-0.1n", -1), ("1.1n", 2), ("1e-100", 1)])
def test_finer_quantities_are_rounded_away_from_zero(quantity, billionths):
    """As in Kubernetes: a used amount is never 0."""
    assert billionths == nano(quantity)


def test_larger_quantities_are_limited():
    """To the maximum of Kubernetes itself."""
    assert (2**63 - 1) * NANO == nano("16E") == nano("9e999")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ".",
        "+",
        "m",
        "1 Gi",
        "1gi",
        "1K",
        "1mm",
        "1e",
        "1e1.5",
        "0x10",
        "1_000",
        "NaN",
        "inf",
        "١",
        "1e9999",
        "1\n",
    ],
)
def test_an_invalid_quantity_is_an_error_with_its_text(text):
    with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
        nano(text)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), True])
def test_numbers_beyond_json_are_errors(number):
    """Python's JSON reader accepts more numbers than JSON has."""
    with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
        nano(number)


@pytest.mark.parametrize(
    ("given_as", "written"),
    [("4000", "4k"), ("15.8", "15800m"), ("0.5Gi", "512Mi"), ("1024Ki", "1Mi"), ("1000e0", "1e3"), ("0k", "0")],
)
def test_a_quantity_in_the_canonical_form_of_the_api_server(given_as, written):
    """Recorded from a real one: "4000" and "15800m"."""
    assert written == canonical(given_as)


SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi", "e3", "E-2"]


@settings(max_examples=200)
@given(
    sign=st.sampled_from(["", "-", "+"]),
    whole=st.integers(0, 9000),
    fraction=st.text("0123456789", max_size=4),
    suffix=st.sampled_from(SUFFIXES),
)
def test_the_canonical_form_has_the_same_value(sign, whole, fraction, suffix):
    """The text that the API server writes has the value of the original, and is its own canonical form."""
    text = f"{sign}{whole}{'.' + fraction if fraction else ''}{suffix}"
    assert nano(text) == nano(canonical(text))
    assert canonical(text) == canonical(canonical(text))
