"""Small faults of a Python source text: each changes one expression or removes one statement."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
OPERATORS: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "/"}
LOGGERS = ("log", "logger")
UNNOTICED = {
    "class": {"frozen", "gc"},  # the type checker refuses assignments to fields; `gc` decides how memory is freed
    "zip": {"strict"},  # an assertion, as the statement `assert`
    "lru_cache": {"maxsize"},  # results are the same with and without a cache
    "TypeVar": {"covariant"},  # only the type checker reads it
}
"""Keyword arguments whose values no test can notice, by the function that they are given to."""


@dataclass(frozen=True)
class Mutation:
    """A replacement of the characters `begin` to `end` of a source text, in the function or class `scope`."""

    scope: str
    line: int
    begin: int
    end: int
    old: str
    new: str

    def apply(self, source: str) -> str:
        return source[: self.begin] + self.new + source[self.end :]

    def __str__(self) -> str:
        return f"{' '.join(self.old.split())} -> {' '.join(self.new.split())}"


def mutations(source: str) -> list[Mutation]:
    """Return all mutations, in the order of the text."""
    return sorted(_Walk(source).found, key=lambda each: (each.begin, each.end, each.new))


class _Walk:
    def __init__(self, source: str) -> None:
        self._source = source
        lengths = [len(line) for line in source.splitlines(keepends=True)]
        self._starts = [sum(lengths[:at]) for at in range(len(lengths) + 1)]
        self._lines = source.splitlines()
        self._scope: list[str] = []
        self.found = [each for statement in ast.parse(source).body for each in self._of(statement)]

    def _of(self, node: ast.AST) -> Iterator[Mutation]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._scope.append(node.name)
            yield from self._inside(node)
            self._scope.pop()
        else:
            yield from self._inside(node)

    def _inside(self, node: ast.AST) -> Iterator[Mutation]:
        yield from self._own(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_text(child) and not _is_unnoticed(node, child):
                    yield from self._of(child)

    def _own(self, node: ast.AST) -> Iterator[Mutation]:
        match node:
            case ast.Compare(left, [operator], [right]):
                yield self._between(left, right, COMPARISONS[type(operator)])
            case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
                yield self._between(left, right, OPERATORS[type(operator)])
            case ast.BoolOp(operator, values):
                word = "or" if isinstance(operator, ast.And) else "and"
                yield from (self._between(one, other, word) for one, other in itertools.pairwise(values))
            case ast.UnaryOp(ast.Not(), operand):
                yield self._replaced(node, self._text(operand))
            case ast.Constant(bool() as value):
                yield self._replaced(node, str(not value))
            case ast.Constant(int() | float() as value):
                yield self._replaced(node, repr(value + 1))
            case ast.If(test) | ast.IfExp(test) | ast.While(test):
                yield self._replaced(test, f"(not ({self._text(test)}))")
            case ast.Expr(ast.Call() as call) if not _logs(call):
                yield self._replaced(node, "pass")
            case ast.AugAssign() | ast.Assign([ast.Attribute() | ast.Subscript()]):
                yield self._replaced(node, "pass")
            case ast.Continue():
                yield self._replaced(node, "break")
            case ast.Break():
                yield self._replaced(node, "continue")

    def _between(self, left: ast.expr, right: ast.expr, new: str) -> Mutation:
        """Replace the operator between two operands; brackets around them stay."""
        begin, end = self._span(left)[1], self._span(right)[0]
        text = self._source[begin:end]
        before, after = len(text) - len(text.lstrip(") \n")), len(text) - len(text.rstrip("( \n"))
        return self._mutation(begin + before, end - after, new)

    def _replaced(self, node: ast.AST, new: str) -> Mutation:
        return self._mutation(*self._span(node), new)

    def _mutation(self, begin: int, end: int, new: str) -> Mutation:
        line = self._source.count("\n", 0, begin) + 1
        return Mutation(".".join(self._scope), line, begin, end, self._source[begin:end], new)

    def _text(self, node: ast.AST) -> str:
        begin, end = self._span(node)
        return self._source[begin:end]

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        """`column` is in bytes of UTF-8."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def _is_text(node: ast.AST) -> bool:
    """Whether a mutation would change only a message: the parts of an f-string, and what an exception says."""
    return isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert)


def _is_unnoticed(parent: ast.AST, child: ast.AST) -> bool:
    """Whether no test can notice a mutation: of a keyword in `UNNOTICED`, and of the body of a protocol's method."""
    match parent, child:
        case ast.ClassDef(bases=bases), ast.FunctionDef() | ast.AsyncFunctionDef():
            return any(_name(base) == "Protocol" for base in bases)
        case ast.ClassDef(), ast.keyword(str() as name):
            return name in UNNOTICED["class"]
        case ast.Call(function), ast.keyword(str() as name):
            return name in UNNOTICED.get(_name(function), ())
    return False


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(name) | ast.Attribute(attr=name) | ast.Subscript(ast.Name(name)):
            return name
    return ""


def _logs(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(ast.Name(name)) if name in LOGGERS:
            return True
    return False
