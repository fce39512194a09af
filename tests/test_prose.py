"""The texts of the project are plain technical English: the idioms of PATTERNS occur in none of them.

Checked are string literals, docstrings and comments of the packages, migrations, tests and benchmarks, the names of
tests, the documentation, the dashboard and the manifests. Names and code in backticks, code blocks, and string literals
without a space (keys, names) are not prose. CONTRIBUTING.md, "Style", explains the rules.
"""

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
# Directories that do not exist are left out.
PACKAGES = [name for name in ("load_watcher", "lab", "watcher", "scorers", "agent") if (REPOSITORY / name).is_dir()]
# Programs of the project outside of the packages whose names and texts are plain English. This file has the idioms.
TESTS = ["tests", "benchmarks", "examples", "scripts"]


@dataclass(frozen=True)
class Pattern:
    """An idiom as a regular expression, in which a space also matches a line break; case is ignored."""

    expression: str
    instead: str  # completes "write …" in the report
    planted: str  # a sentence that contains the idiom

    @functools.cached_property
    def compiled(self) -> re.Pattern[str]:
        expression = self.expression.replace(" ", r"\s+")
        return re.compile(rf"\b(?:{expression})\b", re.IGNORECASE)


COMPARATIVES = "longer|later|sooner|older|newer|earlier|more|less|fewer|larger|smaller|greater|higher|lower|better"
PATTERNS = {
    # "there is no field x" is plain English.
    "is no": Pattern(
        rf"(?<!there\s)(?<!there\scan\s)(?<!there\smay\s)(?:is|are|was|were|be|been) no (?!(?:{COMPARATIVES})\b)\w+",
        "'is not a …', 'has no …', 'unknown …' or 'invalid …'",
        "refresh.intervall is no setting",
    ),
    "tell": Pattern(
        r"tells?|told|telling(?!-)", "'report', 'log', 'return', 'show' or 'distinguish'", "It tells the cluster of it."
    ),
    "whoever": Pattern(r"who(?:so)?(?:m)?ever|whosoever", "the noun: the client, the caller, the user", "Whoever asks"),
    "ours": Pattern(
        r"ours(?!\?)|theirs", "the noun: 'the service's …', 'the caller's …'", "Their clock and ours differ."
    ),
    "anew": Pattern(r"anew", "'again' or 'from the beginning'", "The history is fetched anew."),
    "for ever": Pattern(r"for ever", "'forever' or 'without a limit'", "The copy is kept for\never."),
    "of whom": Pattern(r"of whom", "a second sentence with the noun", "Pods of whom no usage is known"),
    "archaic": Pattern(
        r"thereof|therefrom|wherefrom|whereof|whither|thither|betimes|amiss|aught|lest",
        "a preposition with the noun; for 'lest': 'so that … not'",
        "The pods and the usage thereof",
    ),
    "mend": Pattern(r"mend(?:s|ed|ing)?", "'fix' or 'repair'", "The policies stay until they are mended."),
    "in earnest": Pattern(r"in earnest", "'in enforce mode' or 'actually'", "in preview as in\nearnest"),
    "let go of": Pattern(r"(?:lets?|letting) go(?: of)?", "'release' or 'cancel'", "It lets go of the lock."),
    "no news": Pattern(r"(?:is|are|was|were|of) no news|no news of", "'updates stopped'", "there is no news of pods"),
    "is none": Pattern(
        r"(?:that|which|what) (?:is|are|was|were) (?-i:none)(?! of)|^test .*(?:is|are) none$",
        "'is not a …', 'is missing' or 'is invalid'",
        "A quantity that is none",
    ),
    "who": Pattern(
        r"(?:^test|for|of|by|to|from|than|and|not|is|as|with|or|on|at) who|^test what",
        "the noun: 'the client that …', 'a value that …'",
        "A pod for who asks",
    ),
    "nobody": Pattern(
        r"(?:no|some|any|every)body|no one",
        "the noun: 'no process', 'another program'",
        "A port on which nobody listens",
    ),
    "himself": Pattern(r"himself|his own|one's own", "'itself' or 'its own'", "A query of one's own"),
    "the very": Pattern(r"the very", "'the same', or omit it", "the very list is refused"),
    "is let": Pattern(r"(?:is|are|was|were|be|being) let", "'may' or 'is allowed to'", "if it is let"),
    "put back": Pattern(r"puts? back|putting back", "'restore'", "It puts back the quota."),
    "thief": Pattern(r"thief|thieves", "'another process'", "a CPU with a thief"),
    "in vain": Pattern(r"in vain", "'without effect' or 'fails'", "It was called in vain."),
    "becomes of": Pattern(r"become of|becomes of|became of", "'the outcome' or 'the result'", "what became of it"),
    "but for": Pattern(r"but for", "'except' or 'without'", "equal but for the burst"),
    "all the same": Pattern(r"all the same", "'anyway' or 'although'", "It is served all the same."),
    "once more": Pattern(r"once more", "'again'", "It is tried once more."),
    "go on": Pattern(
        r"(?-i:go) on(?! (?:to|the|a|PATH)\b)|goes on(?! (?:to|the|a)\b)",
        "'continue'",
        "The agent goes on without it.",
    ),
    "says so": Pattern(r"(?:say|says|said) so", "'states it', or name the statement", "the page says so"),
    "hear": Pattern(r"hears?|heard", "'receive' or 'know'", "A node that was never heard of"),
    "ought": Pattern(r"ought", "'should' or 'must'", "everything that ought to move"),
    "nothing of": Pattern(r"nothing of", "'no …' with the noun", "nothing of it is served"),
    "held against": Pattern(r"(?:held|hold|holds) against", "'compare'", "held against the real service"),
    "what-clause": Pattern(
        r"(?:for|of|to|with|at|by|than) what (?:is|are|was|were) (?:waited|looked|asked|hoped) for"
        r"|what (?:is|are|was|were) (?:waited for|hoped for|still to come|to be done)",
        "the noun: 'the pending requests', 'the target'",
        "The answer names what is waited for.",
    ),
    "hour of the night": Pattern(r"at three in the morning", "'during an incident'", "asked at three in the morning"),
    "the seed": Pattern(
        r"in the seed|the seed's|(?:requirements|examples?|words) of the seed|the seed (?:asks|says|wants)|seed 00\d",
        "the rule itself, or the published source",
        "It follows the seed's example.",
    ),
    "citation": Pattern(
        r"contract(?:'s)? (?:§\s?)?\d+(?:\.\d+)*|shared/reference/[\w./-]+\.md|issues? \d{1,3}"
        r"|(?:crane|katalyst|koordinator|qrm|testing|trimaran)\.md,?\s(?:§\s?)?\d+",
        "the rule itself, the published source or a page of docs/",
        "as contract 5.1 requires",
    ),
}
ANY = re.compile("|".join(pattern.compiled.pattern for pattern in PATTERNS.values()), re.IGNORECASE)


@dataclass(frozen=True)
class Text:
    """A piece of prose, and the number of its first line in the file, from 1."""

    line: int
    text: str
    docstring: bool = False
    comment: bool = False


def without_code(text: str) -> str:
    """Replace code in backticks by spaces; line breaks stay."""
    return re.sub(r"(`+)[^`]*?\1", lambda code: re.sub(r"[^\n]", " ", code[0]), text)


def is_program(text: str) -> bool:
    """Whether the text is a Python program of several lines with an import."""
    if not re.search(r"(?m)^\s*(?:import|from) \w", text) or "\n" not in text.strip():
        return False
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def python_texts(source: str) -> Iterator[Text]:
    """Docstrings, string literals with a space, and comments; successive comment lines are one text.

    The pieces of an f-string are separate texts. A string in several literals has the line of its first literal. A
    string that is a Python program with imports has the texts of the program.
    """
    docstrings = set()
    for node in ast.walk(ast.parse(source)):  # parents before children
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None and isinstance(node.body[0], ast.Expr):
                docstrings.add(node.body[0].value)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (node in docstrings or " " in node.value.strip())
        ):
            if node not in docstrings and is_program(node.value):
                for text in python_texts(node.value):
                    yield replace(text, line=node.lineno + text.line - 1)
            else:
                yield Text(node.lineno, node.value, node in docstrings)
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield Text(last - len(block) + 1, "\n".join(block), comment=True)
                block.clear()
            last = token.start[0]
            block.append(token.string.lstrip("#:! "))
    if block:
        yield Text(last - len(block) + 1, "\n".join(block), comment=True)


def names_of_tests(source: str) -> Iterator[Text]:
    """The names of test functions and test classes as words."""
    for match in re.finditer(r"(?m)^[ \t]*(?:async def|def|class) (test\w*)", source):
        yield Text(source.count("\n", 0, match.start()) + 1, match[1].replace("_", " "))


def markdown_texts(source: str) -> Iterator[Text]:
    """The page without fenced code blocks."""
    fence = ""
    kept = []
    for line in source.splitlines():
        opening = re.match(r"\s*(```+|~~~+)", line)
        if not fence and opening:
            fence = opening[1]
            kept.append("")
        elif fence:
            kept.append("")
            if line.strip() == fence:
                fence = ""
        else:
            kept.append(line)
    yield Text(1, "\n".join(kept))


SCRIPT = re.compile(
    r"""(?P<comment> //[^\n]* | /\*.*?\*/ )
      | (?P<string> "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
      | (?P<template> `(?:\\.|\$\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|[^`\\])*` )""",
    re.VERBOSE | re.DOTALL,
)


def script_texts(source: str) -> Iterator[Text]:
    """Comments, and strings and template literals with a space, of JavaScript; `${…}` is left out."""
    for match in SCRIPT.finditer(source):
        text = match[0]
        if match["template"]:
            text = re.sub(r"\$\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", "…", text[1:-1])
        if match["comment"] or " " in text.strip():
            yield Text(source.count("\n", 0, match.start()) + 1, re.sub(r"(?m)^\s*(?://|\*)", "", text))


def manifest_texts(source: str) -> Iterator[Text]:
    """All lines of YAML or HTML: comments, summaries and contents. Keys contain none of the idioms."""
    yield Text(1, re.sub(r"(?m)^(\s*)#+", r"\1", source))


READERS = {
    ".py": python_texts,
    ".md": markdown_texts,
    ".js": script_texts,
    ".html": manifest_texts,
    ".yaml": manifest_texts,
}


def paths(roots: list[str], suffixes: set[str]) -> list[Path]:
    """Files below the roots, without generated code (_pb2), third-party code (vendor), and this file."""
    found = []
    for root in roots:
        place = REPOSITORY / root
        found += sorted(place.rglob("*")) if place.is_dir() else [place]
    return [
        path
        for path in found
        if path.suffix in suffixes
        and "_pb2" not in path.name
        and "vendor" not in path.relative_to(REPOSITORY).parts
        and path != Path(__file__).resolve()
        and path.is_file()
    ]


AREAS = {
    "packages": (PACKAGES, {".py"}),
    "tests": (TESTS, {".py"}),
    "migrations": (["migrations"], {".py"}),
    "docs": (["docs", "README.md"], {".md"}),
    "dashboard": (PACKAGES, {".js", ".html"}),
    "manifests": (["deploy"], {".yaml"}),
}


@functools.cache
def texts(path: Path) -> list[Text]:
    return list(READERS[path.suffix](path.read_text("utf-8")))


def idioms(name: str, pieces: Iterable[Text]) -> list[str]:
    """One line for each idiom: file:line, the words found, and the replacement."""
    found = []
    for piece in pieces:
        if not ANY.search(piece.text):
            continue
        text = without_code(piece.text)
        for pattern in PATTERNS.values():
            for match in pattern.compiled.finditer(text):
                line = piece.line + text.count("\n", 0, match.start())
                found.append(f"{name}:{line}: {' '.join(match[0].split())!r}: write {pattern.instead}")
    return found


def planted_idioms(name: str, source: str) -> list[str]:
    return idioms(name, READERS[Path(name).suffix](source))


def short_docstrings(pieces: Iterable[Text]) -> list[tuple[int, str]]:
    """Line and text of every docstring of four words or fewer."""
    return [(piece.line, piece.text) for piece in pieces if piece.docstring and len(piece.text.split()) <= 4]


@pytest.mark.parametrize(
    "area", [pytest.param(each, marks=pytest.mark.slow) if each == "tests" else each for each in AREAS]
)
def test_texts_contain_no_idioms(area: str):
    files = paths(*AREAS[area])
    assert files
    found = []
    for path in files:
        names = names_of_tests(path.read_text("utf-8")) if area == "tests" else ()
        found += idioms(path.relative_to(REPOSITORY).as_posix(), [*texts(path), *names])
    assert not found, "\n".join(["", *found])


def test_docstrings_have_more_than_four_words():
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {text!r}: state units, shapes, errors or the source, or remove it"
        for path in paths(PACKAGES, {".py"})
        for line, text in short_docstrings(texts(path))
    ]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize("name", PATTERNS)
def test_a_planted_idiom_is_found(name: str):
    planted = PATTERNS[name].planted
    (found,) = planted_idioms("page.md", f"A page.\n\n{planted}\n")
    assert found.startswith("page.md:3: ")
    assert found.endswith(PATTERNS[name].instead)


@pytest.mark.parametrize(
    ("name", "source", "line"),
    [
        ("a.py", '"""One.\n\nIt is told of.\n"""\n', 3),
        ("a.py", 'x = 1\ny = f"{x} is no setting"\n', 2),
        ("a.py", 'x = 1\ny = "a" if x else (\n    "it is "\n    "no setting"\n)\n', 3),
        ("a.py", "x = 1\n# The copy is kept for\n# ever.\n", 2),
        ("a.py", 'x = """\nimport os\n# It is told.\n"""\n', 3),
        ("a.js", 'const a = 1;\nshow("it is told");\n', 2),
        ("a.js", "const a = 1; // kept for ever\n", 1),
        ("a.js", "show(`${a.b({ c: 1 })} is told`);\n", 1),
        ("a.html", "<p>\nIt is told.\n</p>\n", 2),
        ("a.yaml", "a: 1\n# It is kept for\n# ever.\nb: 2\n", 2),
        ("a.md", "```\nfor ever\n```\nkept for ever\n", 4),
    ],
)
def test_an_idiom_is_found_in_every_kind_of_text(name: str, source: str, line: int):
    (found,) = planted_idioms(name, source)
    assert found.startswith(f"{name}:{line}: ")


def test_an_idiom_is_found_in_the_name_of_a_test():
    source = "x = 1\ndef told():\n    pass\ndef test_an_error_is_told():\n    pass\n"
    (found,) = idioms("a.py", names_of_tests(source))
    assert found.startswith("a.py:4: ")


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.py", 'KEYS = {"theirs": 1, "told": 2}\ntold = KEYS["told"]\n'),
        ("a.py", '"""Return `told` and ``theirs`` of the response."""\n'),
        ("a.py", 'PROGRAM = """\nimport os\ntell(os, "theirs")\n"""\n'),
        ("a.py", "# There is none; the Go on PATH is used, and the list goes on the page. Go on to the next step.\n"),
        ("a.py", "# The lock is no longer held, and the copy is no older than 5 s; there is no window yet.\n"),
        ("a.js", 'import { el, told } from "./dom.js";\ntold(a.theirs);\n'),
        ("a.md", "```console\n$ mend --whoever\n```\n\n`whither` is a name; recommend it, and foretell nothing.\n"),
    ],
)
def test_names_keys_code_and_plain_english_pass(name: str, source: str):
    assert not planted_idioms(name, source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""The pods."""\n', [(1, "The pods.")]),
        ('def f():\n    """Close it now, please."""\n', [(2, "Close it now, please.")]),
        ('class A:\n    async def b(self):\n        """Return the usage in bytes."""\n', []),
    ],
)
def test_a_short_docstring_is_found(source: str, expected: list[tuple[int, str]]):
    assert expected == short_docstrings(python_texts(source))
