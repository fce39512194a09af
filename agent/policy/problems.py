"""What is wrong with policies, all of it at once, each with its place and its cure.

Whoever writes a policy mends one mistake per attempt if each attempt tells one. So problems are collected while reading
goes on with what is left, and the set is refused as a whole.

Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands: the file (or "Kubernetes API"), the number of the document in it from 1 (0: the file as a
    whole), the object as KIND/NAME, and the path inside it as kubectl writes it ("spec.rules[0].name")."""

    origin: str
    document: int = 0
    object: str = ""
    path: str = ""

    def __str__(self) -> str:
        where = f"{self.origin} document {self.document}" if self.document else self.origin
        return ": ".join(filter(None, (where, " ".join(filter(None, (self.object, self.path))))))


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing for which a set of policies is refused."""

    place: Place
    message: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" + (f"\n    {self.cure}" if self.cure else "")


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that is not as its author may think, and that is no reason to refuse the set."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(slots=True)
class Complaints:
    """Where problems and notices of one object are collected; `at` says where reading is."""

    place: Place
    problems: list[Problem] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)

    @contextmanager
    def at(self, part: str | int) -> Iterator[None]:
        """Inside, everything is about this field or element."""
        outer, place = self.place, self.place
        path = f"{place.path}[{part}]" if isinstance(part, int) else ".".join(filter(None, (place.path, part)))
        self.place = Place(place.origin, place.document, place.object, path)
        try:
            yield
        finally:
            self.place = outer

    def problem(self, message: str, cure: str = "") -> None:
        """Something is wrong here. What is the second thing wrong with one field is not said: it follows from the
        first, as "is missing" follows from a value that could not be read."""
        if all(each.place != self.place for each in self.problems):
            self.problems.append(Problem(self.place, message, cure))

    def spotless(self) -> bool:
        """Whether nothing is wrong here, nor with anything inside."""
        here = self.place
        return not any(
            (each.place.origin, each.place.document, each.place.object) == (here.origin, here.document, here.object)
            and each.place.path.startswith(here.path)
            for each in self.problems
        )

    def notice(self, message: str) -> None:
        """Something here is worth knowing."""
        self.notices.append(Notice(self.place, message))


def near(name: str, known: Collection[str]) -> str:
    """The sentence that ends the refusal of an unknown name: the nearest known one, or all of them."""
    folded = {each.casefold(): each for each in sorted(known)}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {folded[close[0]]}?"
    return f"Known: {', '.join(sorted(known))}." if known else "There is none."


def shown(value: object, longest: int = 60) -> str:
    """A value as it was given, in one line."""
    words = {None: "nothing", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= longest else f"{text[:longest]}…"
