"""Which faults `make mutants` plants."""

import pytest

from tests.mutants.mutations import mutations


@pytest.mark.parametrize(
    ("source", "mutants"),
    [
        ("a = (b) < (c)", ["a = (b) <= (c)"]),
        ("a = b + c", ["a = b - c"]),
        ("a = b and not c", ["a = b or not c", "a = b and c"]),
        ("a = 'ä' if b else 1.5", ["a = 'ä' if (not (b)) else 1.5", "a = 'ä' if b else 2.5"]),
        ("a.b = True", ["pass", "a.b = False"]),
        (
            "for a in b:\n    f(a)\n    break",
            ["for a in b:\n    pass\n    break", "for a in b:\n    f(a)\n    continue"],
        ),
        ("log.info('a', 1)", ["log.info('a', 2)"]),
        ("raise ValueError(f'{1 + 1}')", []),
        (
            "class A(Struct, frozen=True, gc=False, rename=None, omit_defaults=True): pass",
            ["class A(Struct, frozen=True, gc=False, rename=None, omit_defaults=False): pass"],
        ),
        ("a = B(frozen=True)", ["a = B(frozen=False)"]),
        ("zip(a, b, strict=True)", ["pass"]),
        ("sorted(a, strict=True)", ["pass", "sorted(a, strict=False)"]),
        ("a = functools.lru_cache(maxsize=1)(b)", []),
        ("T = TypeVar('T', covariant=True)", []),
        (
            "class A(Protocol[T]):\n    a = 1\n    def f(self, b=2): ...",
            ["class A(Protocol[T]):\n    a = 2\n    def f(self, b=2): ..."],
        ),
        ("def f(a: Literal[1]) -> Literal[2]: ...", []),
    ],
)
def test_each_mutant_differs_in_one_place(source: str, mutants: list[str]) -> None:
    found = mutations(source)
    assert sorted(mutants) == sorted(each.apply(source) for each in found)
    assert all(source[each.begin : each.end] == each.old for each in found)


def test_the_line_of_a_mutant_is_that_of_its_first_character() -> None:
    assert [3] == [each.line for each in mutations("a = b\nc = (d\n     < e)\n")]


def test_a_mutant_has_the_name_of_its_function() -> None:
    source = "A = 1\nclass B:\n    a = 2\n    def f(self):\n        return 3\ndef f():\n    g()\n"
    assert ["", "B", "B.f", "f"] == [each.scope for each in mutations(source)]
