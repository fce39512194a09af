"""YAML that would need much more memory or stack than its text suggests."""

import pytest

from scorers.extender.manifest import read_pod
from watcher.decoding.yaml_text import MAX_DEPTH, check_yaml

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_aliases_that_expand_to_gigabytes_are_refused_before_they_are_decoded():
    """480 characters for 430 million values."""
    with pytest.raises(ValueError, match="more than 100,000 values, with its aliases expanded"):
        check_yaml(BOMB)
    with pytest.raises(ValueError, match="with its aliases expanded"):
        read_pod("kind: Pod\nspec: {containers: []}\n" + BOMB)


def test_an_alias_of_a_few_values_is_valid():
    check_yaml("a: &a {x: 1}\nb: *a\nc: [*a, *a]\n")
    with pytest.raises(ValueError, match=r"aliases .* are not allowed"):
        check_yaml("a: &a {x: 1}\nb: *a\n", aliases=False)


def test_an_alias_of_itself_is_refused():
    with pytest.raises(ValueError, match=r"the alias \*a is within the value"):
        check_yaml("a: &a [*a]\n")


@pytest.mark.parametrize(("opening", "closing", "key"), [("[", "]", ""), ("{", "}", "a: ")], ids=["lists", "mappings"])
def test_deep_nesting_is_refused(opening: str, closing: str, key: str):
    fine = (opening + key) * (MAX_DEPTH - 1) + "1" + closing * (MAX_DEPTH - 1)
    check_yaml(fine)
    with pytest.raises(ValueError, match="nested more than 100 levels deep"):
        check_yaml((opening + key) * 30_000)
