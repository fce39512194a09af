"""Addresses in settings, which may contain credentials."""

from watcher.core.config.addresses import ADDRESS, PEER
from watcher.core.config.values import describe


def test_an_address_is_shown_without_its_credentials_and_not_in_problems():
    assert ADDRESS.write("http://user:secret@prometheus:9090") == '"http://<hidden>@prometheus:9090"'
    for kind in (ADDRESS, PEER):
        assert describe("htp:user:secret@prometheus", private=kind.private) == "text"
