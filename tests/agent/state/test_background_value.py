"""Values that a background task refreshes: the task survives failures."""

import asyncio
import logging

import pytest

from agent.state.background_value import BackgroundValue
from tests.waiting import eventually


class Gone(Exception):
    hint = "Look for it."


async def test_failures_and_bugs_are_logged_once_and_the_task_continues(caplog: pytest.LogCaptureFixture):
    faults = [RuntimeError(f"fault {number}") for number in range(3)]
    outcomes: list[int | Exception] = [1, Gone("it is gone"), Gone("it is gone"), *faults, 2]
    seen = []

    async def refresh() -> int:
        outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        seen.append(outcome)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with caplog.at_level(logging.INFO):
        kept = BackgroundValue("the thing", refresh, interval=0.01, failures=(Gone,))
        assert (kept.copy, kept.failure) == (None, "")
        await kept.start()
        await eventually(lambda: kept.copy == 2, what="the last copy")
        assert kept.failure == ""
        await kept.close()
        asked = len(seen)
        await asyncio.sleep(0.03)
        assert asked == len(seen)
        assert {asyncio.current_task()} == asyncio.all_tasks()
    reported = [each.getMessage() for each in caplog.records if each.name == "agent.state.background_value"]
    assert reported == [
        "updates of the thing stopped: it is gone. Look for it.",
        "unexpected error while reading the thing",
        "updates of the thing resumed",
    ]
