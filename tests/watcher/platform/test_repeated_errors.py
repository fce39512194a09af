"""An unexpected error of a loop is logged once, not in each round."""

from __future__ import annotations

import logging

import pytest

from watcher.platform.repeated_errors import RepeatedErrors

log = logging.getLogger(__name__)


def divide(number: int) -> None:
    assert number / 0


def look_up(number: int) -> None:
    raise KeyError(number)


def test_an_error_is_logged_when_it_begins_and_when_another_one_replaces_it(caplog: pytest.LogCaptureFixture):
    errors = RepeatedErrors(log)
    rounds = [divide, divide, look_up, look_up, divide, None, divide]

    with caplog.at_level(logging.INFO):
        for number, step in enumerate(rounds):
            try:
                if step is not None:
                    step(number)
                errors.succeeded()
            except Exception as error:
                errors.failed(error, "round %d failed", number)

    assert [record.getMessage() for record in caplog.records] == [f"round {number} failed" for number in (0, 2, 4, 6)]
    assert all(record.levelno == logging.ERROR and record.exc_info for record in caplog.records)


def test_repetitions_are_in_the_debug_log(caplog: pytest.LogCaptureFixture):
    errors = RepeatedErrors(log)
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            try:
                divide(0)
            except ZeroDivisionError as error:
                errors.failed(error, "failed")
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.DEBUG, logging.DEBUG]
