"""The places in the code of Crane that docs/reference/differences.md names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.originals.crane.classes import CLASSES
from tests.originals.frame import DifferenceClass

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "differences.md"


@pytest.mark.parametrize("each", CLASSES, ids=lambda each: each.name)
def test_the_page_names_the_place_of_the_class(each: DifferenceClass):
    section = PAGE.read_text().partition("## Crane")[2].partition("\n## ")[0].casefold()
    (row,) = (line for line in section.splitlines() if line.startswith(f"|{each.name.casefold()}"))
    assert each.citation.partition(", ")[0].removeprefix("pkg/ensurance/") in row
