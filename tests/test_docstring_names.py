"""Names in backticks in docstrings and comments of the packages exist.

A name is a path of identifiers with a dot, an underscore or a capital: `module.function`, `key_of`, `ClusterNodes`,
`grpc_server.py`. It exists if every part occurs in code, in a string, or in a file that is not Python (protocols,
manifests, pages of the dashboard): settings, metrics and JSON keys do. The part after the name of a module or package
occurs in that module or is a module of that package, unless the whole path occurs in code. Fields of Kubernetes objects
and words in capitals, which stand for a value, are not checked.
"""

import ast
import functools
import io
import re
import subprocess
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_prose import PACKAGES, REPOSITORY, paths, texts

# Functions and settings of Kubernetes that the code follows.
KUBERNETES = {
    "ComputePodQOS",
    "MilliValue",
    "NonZeroRequested",
    "PodLimits",
    "PodRequests",
    "Toleration.ToleratesTaint",
    "cgroupDriver",
    "determineEffectiveLimits",
    "determineEffectiveRequests",
    "schedulePod",
}
WORD = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
CODE = re.compile(r"(`+)([^`]+?)\1")
NAME = re.compile(r"(?<![\w./{-])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?![\w/]|-\w)")
UNCHECKED = re.compile(r"[a-z0-9]+|[A-Z0-9]+|(?:\w+\.)*[A-Z0-9]+|(?:metadata|spec|status)\..*")


def names_in(text: str) -> Iterator[str]:
    """The words of the text and the paths of words."""
    for path in WORD.findall(text):
        yield path
        yield from path.split(".")


def code_names(source: str) -> set[str]:
    """Identifiers, paths of identifiers and the words of strings of Python source, without docstrings and comments."""
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
    }
    lines = source.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.start in docstrings):
            (first, start), (last, end) = token.start, token.end
            rest = lines[last - 1][end:]
            lines[first - 1] = lines[first - 1][:start] + (rest if first == last else "\n")
            lines[first:last] = [""] * (last - first)
    return set(names_in("".join(lines)))


@functools.cache
def names_of_modules() -> dict[str, set[str]]:
    """Names by module or package; those of files that are not Python at "". Tests and pages of docs are left out."""
    modules: dict[str, set[str]] = defaultdict(set)
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for path in map(Path, listed.splitlines()):
        if path.parts[0] in {"tests", "docs"} or path.suffix == ".md" or not (REPOSITORY / path).is_file():
            continue
        source = (REPOSITORY / path).read_text("utf-8", errors="replace")
        if path.suffix == ".py":
            modules[path.parts[-2] if path.stem == "__init__" else path.stem] |= code_names(source) | {"py"}
        else:
            modules[""].update(names_in(source), names_in(path.name))
        for parent, child in zip(path.parts, path.parts[1:], strict=False):
            modules[parent].add(Path(child).stem)
    return modules


@functools.cache
def known_names() -> set[str]:
    modules = names_of_modules()
    return set(modules).union(*modules.values())


def exists(name: str) -> bool:
    if UNCHECKED.fullmatch(name) or name in KUBERNETES or name in known_names():
        return True
    first, *rest = name.split(".")
    if not rest or not known_names().issuperset([first, *rest]):
        return False
    # Before a class stands a module; another word may also be an object or a section of the settings.
    return rest[0] in names_of_modules().get(first, set() if rest[0][0].isupper() else known_names())


def unknown_names(text: str) -> Iterator[tuple[int, str]]:
    """Line in the text, from 0, and each name in backticks that does not exist."""
    for code in CODE.finditer(text):
        for name in NAME.findall(code[2]):
            if not exists(name):
                yield text.count("\n", 0, code.start()), name


@pytest.mark.slow
def test_names_in_docstrings_and_comments_exist():
    found = [
        f"{path.relative_to(REPOSITORY)}:{piece.line + line}: `{name}` does not exist"
        for path in paths(PACKAGES, {".py"})
        for piece in texts(path)
        if piece.docstring or piece.comment
        for line, name in unknown_names(piece.text)
    ]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize(
    "name", ["directory.ClusterNodes", "fields.read_all", "_recount_all", "grpc_servers.py", "tick.take_distributed"]
)
def test_a_name_that_does_not_exist_is_found(name: str):
    assert [(1, name)] == list(unknown_names(f"A server\nwith ``{name}`` and `grpc_server.py`."))


@pytest.mark.parametrize(
    "code",
    [
        "grpc_server.py",
        "ComputePodQOS",
        "status.capacity",
        "load_watcher.commands",
        "KEY=VALUE",
        "--log-level",
        "/proc/No_Such",
        "memory.high",
    ],
)
def test_existing_names_and_other_code_pass(code: str):
    assert not list(unknown_names(f"As `{code}` of no_such_name."))
