"""Whether a manager uses a plug-in, and how it is reported if none does."""

import pytest

from agent.qrm.grpc.contact import SILENT_S, ManagerContact, SilenceReport


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_calls_keep_a_registration_alive():
    contact = ManagerContact(clock := Clock(), called_regularly=True)
    assert (contact.error, contact.live, contact.silent_for) == (None, False, 0.0)
    contact.registered("")
    clock.now += SILENT_S - 1
    assert contact.live
    contact.called()
    clock.now += SILENT_S - 1
    assert contact.live
    clock.now += 1
    assert (contact.error, contact.live, contact.silent_for) == ("", False, SILENT_S)


def test_a_plugin_that_managers_do_not_call_regularly_is_alive_while_it_is_registered():
    contact = ManagerContact(clock := Clock(), called_regularly=False)
    contact.registered("")
    clock.now += 10 * SILENT_S
    assert (contact.live, contact.silent_for) == (True, 0.0)
    contact.lost()
    clock.now += 5
    assert (contact.error, contact.live, contact.silent_for) == (None, False, 5.0)


def test_a_refused_registration_is_not_a_contact():
    contact = ManagerContact(clock := Clock(), called_regularly=True)
    clock.now += SILENT_S
    contact.registered("no handler registered for plugin type: ResourcePlugin")
    assert (contact.live, contact.silent_for) == (False, SILENT_S)


def test_the_begin_and_the_end_of_a_silence_are_logged_once(caplog: pytest.LogCaptureFixture):
    contact = ManagerContact(clock := Clock(), called_regularly=True)
    report = SilenceReport({"cpu": contact}, where="/var/lib/katalyst/plugin-socks")
    with caplog.at_level("INFO"):
        for seconds in (0, SILENT_S - 1, 1, 60):
            clock.now += seconds
            report.check()
        assert caplog.messages == [
            "no manager has registered or called the plug-in for cpu for 180 s; check that the manager runs and reads "
            "the plug-in directory /var/lib/katalyst/plugin-socks"
        ]
        contact.called()
        report.check()
        report.check()
        assert caplog.messages[1:] == ["a manager uses the plug-in for cpu again"]
        clock.now += SILENT_S
        report.check()
        assert len(caplog.messages) == 3
