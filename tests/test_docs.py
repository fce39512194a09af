"""The pages: each link has a target, the index has each page, and their total length is limited."""

import re
from pathlib import Path

import pytest

from tests.real.parts import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]
OTHER_PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "examples").rglob("*.md"))]
GENERATED = {"settings.md", "agent-settings.md", "layouts.md"}
MOST_WORDS = 37_500


def prose(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of headings, as GitHub derives them (a repeated heading gets a number), and of `<a id>`."""
    text = prose(page)
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = sum(re.fullmatch(rf"{re.escape(name)}(-\d+)?", each) is not None for each in found)
        found.append(f"{name}-{number}" if name in found else name)
    return {*found, *re.findall(r'<a (?:id|name)="([^"]+)">', text)}


def links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return re.findall(r"\]\(<?([^)\s>]+)>?\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)


def broken(page: Path) -> list[str]:
    wrong = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", sorted({*PAGES, *OTHER_PAGES}), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_each_link_has_a_target(page: Path) -> None:
    assert broken(page) == []


def test_the_index_lists_each_page_once() -> None:
    listed = [link for link in links(DOCS / "README.md") if not link.startswith(".")]
    pages = [str(page.relative_to(DOCS)) for page in PAGES[1:] if page.name != "README.md"]
    assert sorted(listed) == sorted(pages)


def test_each_page_states_its_stability() -> None:
    without = [page for page in PAGES if not re.search(r"^Status: ", page.read_text("utf-8")[:400], re.MULTILINE)]
    assert [REPOSITORY / "README.md", DOCS / "README.md"] == without


def test_pages_that_the_code_names_exist() -> None:
    """In hints of errors, comments of manifests, links of the dashboard."""
    named: dict[str, str] = {}
    for root in ("load_watcher", "lab", "watcher", "scorers", "agent", "deploy"):
        for path in (REPOSITORY / root).rglob("*"):
            if path.suffix in {".py", ".js", ".html", ".yaml", ".txt", ".toml"} and path.is_file():
                found = re.findall(r"\bdocs/(?:[\w-]+/)*[\w-]+\.md(?:#[\w-]+)?", path.read_text("utf-8"))
                named.update(dict.fromkeys(found, str(path.relative_to(REPOSITORY))))
    assert "docs/tasks/metrics-server.md" in named
    assert {name: where for name, where in named.items() if not (REPOSITORY / name.partition("#")[0]).is_file()} == {}
    with_anchor = [name.partition("#")[::2] for name in named if "#" in name]
    assert [name for name, anchor in with_anchor if anchor not in anchors(REPOSITORY / name)] == []


def test_the_total_length_of_the_pages_is_limited() -> None:
    """Words as `wc -w` counts them, without generated pages and generated tables."""
    table = r"<!-- table: make \w+ -->.*?<!-- end of the table -->|<!-- benchmark: .*?<!-- /benchmark -->"
    texts = {str(p.relative_to(REPOSITORY)): p.read_text() for p in PAGES if p.name not in GENERATED}
    counts = {name: len(re.sub(table, "", text, flags=re.DOTALL).split()) for name, text in texts.items()}
    assert sum(counts.values()) <= MOST_WORDS, sorted(counts.items(), key=lambda each: -each[1])[:10]
