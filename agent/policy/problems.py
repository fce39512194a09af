"""Problems found in policies, each with its location and a fix.

All problems are collected in one pass, so that the author can fix them together: reading continues after a problem, and
the set is rejected as a whole.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from watcher.core.config.fields import Field
from watcher.core.config.reader import Report
from watcher.core.messages import nearest


@dataclass(frozen=True, slots=True)
class PolicyLocation:
    """A location: the file (or "Kubernetes API"), the number of the document in it from 1 (0: the whole file), the
    object as KIND/NAME, and the path inside it as kubectl writes it ("spec.rules[0].name")."""

    origin: str
    document: int = 0
    object: str = ""
    path: str = ""

    @property
    def file(self) -> str:
        """The origin, and the number of the document in it."""
        return f"{self.origin} document {self.document}" if self.document else self.origin

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.file, " ".join(filter(None, (self.object, self.path))))))


@dataclass(frozen=True, slots=True)
class PolicyProblem:
    """One reason to reject a set of policies."""

    place: PolicyLocation
    message: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" + (f"\n    {self.cure}" if self.cure else "")


@dataclass(frozen=True, slots=True)
class PolicyNotice:
    """A likely mistake that is not a reason to reject the set. One with a cure is a warning: a policy has no effect.
    `fails_check` makes it a problem of `load-watcher agent --check`, where rejecting the set stops no rule."""

    place: PolicyLocation
    message: str
    cure: str = ""
    fails_check: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"

    def as_problem(self) -> PolicyProblem:
        """The same text as a reason to reject the set."""
        return PolicyProblem(self.place, self.message, self.cure)


@dataclass
class ProblemCollector(Report):
    """Collects the problems and notices of one object; `place` is the current location."""

    spellings = {"objectiveEnsurances": "rules", "labelselector": "labelSelector"}  # noqa: RUF012
    """Spellings in older versions of the CRDs (until August 2022)."""

    place: PolicyLocation
    problems: list[PolicyProblem] = field(default_factory=list)
    notices: list[PolicyNotice] = field(default_factory=list)

    @contextmanager
    def at(self, *parts: str | int) -> Iterator[None]:
        """Inside the context, problems and notices refer to this field or element, or to one inside it."""
        outer, path = self.place, self.place.path
        for part in parts:
            path = f"{path}[{part}]" if isinstance(part, int) else ".".join(filter(None, (path, part)))
        self.place = replace(outer, path=path)
        try:
            yield
        finally:
            self.place = outer

    def problem(self, message: str, cure: str = "") -> None:
        """Add a problem at the current location. Only the first problem of a field is recorded, because later ones
        follow from it, as "is missing" follows from an unreadable value."""
        if all(each.place != self.place for each in self.problems):
            self.problems.append(PolicyProblem(self.place, message, cure))

    def is_clean(self) -> bool:
        """Whether the current location and everything inside it is free of problems."""
        here = self.place
        return not any(
            (each.place.origin, each.place.document, each.place.object) == (here.origin, here.document, here.object)
            and each.place.path.startswith(here.path)
            for each in self.problems
        )

    def notice(self, message: str, cure: str = "", *, fails_check: bool = False) -> None:
        """Add a notice at the current location."""
        self.notices.append(PolicyNotice(self.place, message, cure, fails_check))

    def unknown(self, name: str, known: Collection[str]) -> None:
        self.problem("unknown field", near(name, known))

    def twice(self, name: str) -> None:
        self.problem(f"is another spelling of {name}, which is also given", "Remove one of them.")

    def missing(self, field: Field) -> None:
        self.problem("is missing")

    def unfit(self, accepts: str, given: object, detail: str = "", field: Field | None = None) -> None:
        if accepts.startswith("text") and isinstance(given, (bool, int, float)):
            detail = f"YAML reads it as {'true or false' if isinstance(given, bool) else 'a number'}: put it in quotes."
        self.problem(f"must be {accepts}, and is {shown(given)}", detail)


def near(name: str, known: Collection[str]) -> str:
    """The last sentence of an error about an unknown name: the closest known name, or all of them."""
    if close := nearest(name, sorted(known)):
        return f"Did you mean {close}?"
    return f"Known: {', '.join(sorted(known))}." if known else "None are known."


def shown(value: object, longest: int = 60) -> str:
    """A value as written, on one line, cut to `longest` characters."""
    words = {None: "nothing", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= longest else f"{text[:longest]}…"
