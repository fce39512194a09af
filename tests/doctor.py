"""Run `load-watcher doctor` as a user does, and read its report."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner

from load_watcher import main


@dataclass(frozen=True)
class Line:
    """One line of the report."""

    name: str
    status: str
    what: str
    cure: str


@dataclass(frozen=True)
class Reported:
    """The output of the command and its exit code."""

    exit_code: int
    status: str
    lines: tuple[Line, ...]
    output: str

    def __str__(self) -> str:
        return "\n".join(f"{each.status} {each.name}: {each.what} (fix: {each.cure})" for each in self.lines)

    def of(self, name: str, *statuses: str) -> tuple[Line, ...]:
        """The lines of a check, of these statuses or of all."""
        return tuple(line for line in self.lines if line.name == name and (not statuses or line.status in statuses))

    def one(self, name: str, status: str, *words: str) -> Line:
        """The only line of a check with this status whose text or remedy has all these words."""
        found = [
            line for line in self.of(name, status) if all(word in f"{line.what} fix: {line.cure}" for word in words)
        ]
        assert len(found) == 1, f"{len(found)} lines of {name} are {status} and have {words}:\n{self}"
        return found[0]

    def failed(self) -> set[str]:
        """The checks that failed."""
        return {line.name for line in self.lines if line.status == "fail"}


def doctor(*arguments: str, env: Mapping[str, str] | None = None) -> Reported:
    """Run it in the working directory, which should be that of the test; with port 0 unless the arguments set
    another."""
    result = CliRunner().invoke(main.main, ["doctor", "-o", "json", "--port", "0", *arguments], env=dict(env or {}))
    assert result.exit_code in (0, 1), result.output
    document: dict[str, Any] = json.loads(result.stdout)
    lines = tuple(Line(**each) for each in document["checks"])
    assert all(line.cure for line in lines if line.status in ("warn", "fail")), "a failure without a remedy"
    return Reported(result.exit_code, document["status"], lines, result.output)
