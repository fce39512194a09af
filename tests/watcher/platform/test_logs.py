"""Log lines: one event per line, in both formats, for any texts in it."""

import json
import logging
import re
import sys
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.platform.logs import CHATTY, JsonFormatter, LogSettings, TextFormatter, setup_logging

LOGGER = logging.getLogger("watcher.test")


@pytest.fixture
def set_up():
    """setup_logging, undone after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield lambda cluster="", **settings: setup_logging(LogSettings(**settings), cluster=cluster)
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_text_lines_have_time_level_logger_and_message(set_up, capsys):
    """Time in UTC with milliseconds."""
    set_up()
    LOGGER.warning("node %s is silent", "node-1")
    LOGGER.debug("not shown")
    pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z warning watcher\.test: node node-1 is silent\n"
    assert re.fullmatch(pattern, capsys.readouterr().err)


def test_json_lines_are_one_object_each(set_up, capsys):
    """With a traceback, too."""
    set_up(format="json", level="debug")
    try:
        raise ValueError("broken\nin two")
    except ValueError:
        LOGGER.exception("failed on %s", "ü")
    LOGGER.debug("next")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert {key: first[key] for key in ("level", "logger", "message")} == {
        "level": "error",
        "logger": "watcher.test",
        "message": "failed on ü",
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["ts"])
    assert first["exception"].startswith("Traceback")
    assert "ValueError: broken\nin two" in first["exception"]
    assert set(second) == {"ts", "level", "logger", "message"}


def test_json_lines_name_their_cluster(set_up, capsys):
    """If it has a name; text lines do not."""
    set_up(format="json", cluster='a "b"')
    LOGGER.warning("one")
    set_up(cluster="a")
    LOGGER.warning("two")
    first, second = capsys.readouterr().err.splitlines()
    assert 'a "b"' == json.loads(first)["cluster"]
    assert second.endswith("warning watcher.test: two")


def test_a_second_setup_replaces_the_first(set_up, capsys):
    """After a reload, each event is logged once, with the new settings."""
    set_up()
    set_up(level="error", format="json")
    LOGGER.warning("not shown")
    LOGGER.error("shown")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "shown"


def test_skipped_ticks_are_not_logged_after_a_reload(set_up, capsys):
    """APScheduler warns about each tick that is skipped because the source hangs; SIGHUP sets up the log again."""
    scheduler = logging.getLogger("apscheduler.scheduler")
    for _ in range(2):
        set_up(level="info")
        scheduler.warning("skipped: maximum number of running instances reached")
    scheduler.error("broken")

    assert [line.rsplit(": ")[-1] for line in capsys.readouterr().err.splitlines()] == ["broken"]


def test_verbose_libraries_are_logged_only_at_level_debug(set_up, capsys):
    """A library's message about each job is logged only to find a bug."""
    chatty = logging.getLogger("alembic.runtime")
    set_up(level="info")
    chatty.info("Running job")
    chatty.warning("missed")
    set_up(level="debug")
    chatty.info("Running job again")
    assert [line.rsplit(": ")[-1] for line in capsys.readouterr().err.splitlines()] == ["missed", "Running job again"]


def _record(message):
    return logging.LogRecord("watcher.test", logging.INFO, __file__, 1, "%s", (message,), None)


@given(st.text())
def test_no_text_makes_a_second_line(message):
    """A node name cannot forge a line or send control sequences to a terminal."""
    text = TextFormatter().format(_record(message))
    assert text.isprintable()
    line = JsonFormatter().format(_record(message))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["message"] == message


def test_a_traceback_follows_its_line(set_up, capsys):
    """In text format, it is below the message."""
    set_up()
    try:
        raise KeyError("x")
    except KeyError:
        LOGGER.exception("failed", stack_info=True)
    first, second, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith("error watcher.test: failed")
    assert second == "Traceback (most recent call last):"
    assert "Stack (most recent call last):" in rest
    assert sys.exc_info() == (None, None, None)


def test_a_warning_of_a_library_is_one_line_of_the_log(set_up, capsys):
    """NumPy would otherwise write two lines of raw text, which is not JSON."""
    logging.captureWarnings(False)  # an earlier test may have set it
    try:
        with warnings.catch_warnings():
            set_up(format="json")
            warnings.showwarning("overflow in a library", RuntimeWarning, "library.py", 7)
    finally:
        logging.captureWarnings(False)
    (line,) = capsys.readouterr().err.splitlines()
    assert "overflow in a library" in json.loads(line)["message"]
