"""The page docs/reference/layouts.md."""

from tests.field.layout import read_layouts
from tests.field.page import documentation
from tests.real.parts import REPOSITORY


def test_the_page_has_the_layouts():
    """docs/reference/layouts.md is made by `python -m tests.field.page`, and has each layout."""
    text = documentation()
    assert (REPOSITORY / "docs" / "reference" / "layouts.md").read_text() == text
    layouts = read_layouts()
    assert all(f"| {layout.title}: " in text for layout in layouts.values())
    assert len(layouts) >= 30


def test_no_layout_is_still_wrong():
    assert {name: layout.wrong for name, layout in read_layouts().items() if layout.wrong} == {}
