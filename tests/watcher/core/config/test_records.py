"""Tables in lists: read whole, or refused with all their problems."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from watcher.core.config import values
from watcher.core.config.records import read_record, text_of_json, write_record
from watcher.core.config.values import InvalidValue


@dataclass(frozen=True)
class Rule:
    pool: Annotated[str, values.TEXT]
    weight: Annotated[int, values.integer(lowest=0, highest=9)] = 1


def test_a_record_is_read_and_written():
    assert read_record(Rule, {"pool": "gpu"}, called="rule 1") == Rule("gpu")
    assert write_record(Rule("gpu", 3), pool="") == '{ pool = "gpu", weight = 3 }'
    assert write_record(Rule("gpu"), pool="gpu") == "{  }"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "rule 1 has no pool"),
        ({"pol": "gpu"}, "rule 1 has the unknown key 'pol'; did you mean pool?; rule 1 has no pool"),
        ({"pool": "gpu", "x": 1}, "rule 1 has the unknown key 'x'; known keys: pool, weight"),
        ({"pool": "gpu", "weight": 10}, "weight of rule 1 must be a whole number from 0 to 9; given 10"),
        ("gpu", ""),
    ],
)
def test_all_problems_of_a_record_are_in_one_message(given: Any, message: str):
    with pytest.raises(InvalidValue) as caught:
        read_record(Rule, given, called="rule 1")
    assert message == str(caught.value)


def test_the_text_form_is_json():
    read_text = text_of_json(lambda given: read_record(Rule, given, called="the rule"))
    assert read_text('{"pool": "gpu"}') == Rule("gpu")
    with pytest.raises(InvalidValue, match="the rule has no pool"):
        read_text("{}")
    with pytest.raises(InvalidValue, match="invalid JSON: "):
        read_text("{")
