"""Recorded cases with the answers of the original, `tests/originals/NAME/recorded.json.gz`; replaying needs no Go."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.originals.frame import Case, CaseComparison, Original

HERE = Path(__file__).parent
SEED = 1
LIMIT = 280_000  # bytes of a file
WANTED = 2  # recorded cases for each feature
MOST_VALUES = 20  # a text with more different values at one place is not a feature

Record = tuple[Case, Any]
"""A case and the answer of the original."""

Feature = tuple[str, str]
"""A place in a case or an answer, and its value; or a check and its result."""


def recorded_file(name: str) -> Path:
    return HERE / name / "recorded.json.gz"


def read_records(name: str) -> dict[str, list[Record]]:
    """The recorded cases of an original by comparison."""
    return read_file(recorded_file(name))


def read_file(path: Path) -> dict[str, list[Record]]:
    """The cases in a file that `record` wrote."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    return {comparison: [(case, answer) for case, answer in records] for comparison, records in content.items()}


def record(original: Original, program: Path, path: Path, *, cases: int | None = None) -> str:
    """Choose cases of a fixed seed by what they cover and write them to a file; return a line for the user."""
    chosen: dict[str, list[Record]] = {}
    comparisons = [each for each in original.comparisons if isinstance(each, CaseComparison)]
    for comparison in comparisons:
        generated = comparison.cases(SEED, cases or comparison.default_cases)
        answers = comparison.ask_original(program, generated)
        chosen[comparison.name] = choose(original, comparison, list(zip(generated, answers, strict=True)))
    if not chosen:
        return f"{original.name}: no comparison records cases"
    while len(content := _compressed(chosen)) > LIMIT:
        longest = max(chosen, key=lambda name: len(json.dumps(chosen[name])))
        chosen[longest] = chosen[longest][: len(chosen[longest]) * 9 // 10]
    path.write_bytes(content)
    counts = ", ".join(f"{len(records)} cases of {name}" for name, records in chosen.items())
    return f"{path}: {counts}, {len(content)} bytes"


def choose(original: Original, comparison: CaseComparison, records: Sequence[Record]) -> list[Record]:
    """The records with a feature that fewer than `WANTED` chosen records have, those with the rarest features first."""
    features = _without_free_texts([_features(original, comparison, *each) for each in records])
    frequency = Counter(feature for each in features for feature in each)
    covered: Counter[Feature] = Counter()
    chosen = []
    for index in sorted(range(len(records)), key=lambda index: min(frequency[feature] for feature in features[index])):
        if any(covered[feature] < WANTED for feature in features[index]):
            covered.update(features[index])
            chosen.append(records[index])
    return chosen


def _features(original: Original, comparison: CaseComparison, case: Case, answer: Any) -> set[Feature]:
    found = set(_places("case", case)) | set(_places("answer", answer))
    for outcome in comparison.compare(case, answer):
        explaining = None if outcome.equal else original.class_of(outcome)
        found.add((outcome.check, "equal" if outcome.equal else explaining.name if explaining else "undocumented"))
    return found


def _places(at: str, value: Any) -> Iterator[Feature]:
    """The places of a JSON value, without the positions in lists."""
    if isinstance(value, dict):
        yield at, ""
        for key, each in value.items():
            yield from _places(f"{at}.{key}", each)
    elif isinstance(value, list):
        for each in value:
            yield from _places(f"{at}[]", each)
    else:
        yield at, str(value) if isinstance(value, str | bool) else ""


def _without_free_texts(records: Sequence[set[Feature]]) -> list[set[Feature]]:
    """The features of records without the values of places that have too many different values."""
    values: defaultdict[str, set[str]] = defaultdict(set)
    for place, value in (feature for each in records for feature in each):
        values[place].add(value)
    free = {place for place, found in values.items() if len(found) > MOST_VALUES}
    return [{(place, "" if place in free else value) for place, value in each} for each in records]


def _compressed(content: dict[str, list[Record]]) -> bytes:
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0)
