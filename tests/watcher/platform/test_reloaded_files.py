"""Tokens and certificates take effect when their files change, and unusable ones are refused."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.waiting import eventually
from watcher.platform.http.tls import ServerTls
from watcher.platform.reloaded_files import FileReloader, ReloadedFiles, ReloadedToken, read_token


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


@pytest.fixture
def token(tmp_path: Path) -> ReloadedToken:
    path = tmp_path / "token"
    path.write_text("old")
    return ReloadedToken("server.token_file", path, lambda: read_token(path))


@in_loop
async def test_a_change_is_read_when_the_file_is_stable(tmp_path: Path, token: ReloadedToken) -> None:
    """A file that is being written is not read; a signal does not wait."""
    (files,) = token.files
    path = tmp_path / "token"
    path.write_text("half")
    await files.check()
    assert "old" == token.value
    path.write_text("whole")
    await files.check()
    assert "old" == token.value
    await files.check()
    assert "whole" == token.value
    path.write_text("next")
    await files.check(at_once=True)
    assert "next" == token.value


@in_loop
async def test_the_log_names_the_file_once_and_not_the_token(
    tmp_path: Path, token: ReloadedToken, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "token").write_text("n3w")
    for _ in range(3):
        await token.files[0].check(at_once=True)
    assert [f"server.token_file ({tmp_path}/token) changed and was read again"] == [
        each.message for each in caplog.records
    ]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.write_text(" \n"), "the file is empty"),
        (lambda path: path.write_bytes(b"\xff"), "the file is not a text file"),
        (lambda path: path.unlink(), "No such file or directory"),
    ],
)
@in_loop
async def test_an_unusable_file_is_refused_once(
    tmp_path: Path,
    token: ReloadedToken,
    spoil: Callable[[Path], object],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The earlier token stays valid until there is a valid file again."""
    spoil(tmp_path / "token")
    for _ in range(3):
        await token.files[0].check()
    (message,) = [each.message for each in caplog.records]
    assert f"cannot be used: {reason}; the former value stays in use" in message
    assert "old" == token.value
    (tmp_path / "token").write_text("new")
    await token.files[0].check(at_once=True)
    assert "new" == token.value


@in_loop
async def test_an_exchanged_link_is_a_change(tmp_path: Path) -> None:
    """As the kubelet replaces the files of a Secret."""
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(f"token {name}")
    (tmp_path / "data").symlink_to("1")
    path = tmp_path / "data" / "token"
    token = ReloadedToken("server.token_file", path, lambda: read_token(path))
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").rename(tmp_path / "data")

    async with FileReloader(token.files, every_s=0.01).life():
        await eventually(lambda: token.value == "token 2", what="the token to be read again")


# --- certificates ----------------------------------------------------------------------------------------------------


class Folder:
    """The files of a server certificate and of the CA of the clients."""

    def __init__(self, directory: Path) -> None:
        self.cert, self.key, self.ca = (directory / name for name in ("tls.crt", "tls.key", "ca.crt"))
        self.servers = trustme.CA()

    def write(self, clients: trustme.CA) -> None:
        """Write a new certificate of the server, and a CA for the clients."""
        issued = self.servers.issue_cert("127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(self.cert)
        issued.private_key_pem.write_to_path(self.key)
        clients.cert_pem.write_to_path(self.ca)

    def client(self, ca: trustme.CA | None = None) -> ssl.SSLContext:
        """The context of a client with a certificate of `ca`."""
        context = ssl.create_default_context()
        self.servers.configure_trust(context)
        if ca is not None:
            ca.issue_cert("scheduler").configure_cert(context)
        return context


async def certificate_of(port: int, context: ssl.SSLContext, session: list[ssl.SSLObject] | None = None) -> bytes:
    """The certificate that the server presents; raises if it does not accept the client's."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        assert b"hello" == await reader.readexactly(5)  # TLS 1.3: a refused client certificate is seen here
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(shown, bytes)
        return shown
    finally:
        writer.close()


async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    writer.close()


@in_loop
async def test_new_certificates_serve_new_connections(tmp_path: Path) -> None:
    """The server's own, and the CA of the clients: a removed one is not trusted any more."""
    folder, old, new = Folder(tmp_path), trustme.CA(), trustme.CA()
    folder.write(old)
    tls = ServerTls(folder.cert, folder.key, folder.ca)
    async with await asyncio.start_server(greet, "127.0.0.1", 0, ssl=tls.context) as server:
        port = server.sockets[0].getsockname()[1]
        known = folder.client(old)
        before = await certificate_of(port, known)
        folder.write(new)
        await tls.files.check(at_once=True)

        after = await certificate_of(port, folder.client())
        assert before != after
        assert after == await certificate_of(port, folder.client(new))
        for client in (known, folder.client(old)):
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await certificate_of(port, client)


@in_loop
async def test_a_key_of_another_certificate_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The earlier certificate is presented until certificate and key match."""
    folder, clients = Folder(tmp_path), trustme.CA()
    folder.write(clients)
    tls = ServerTls(folder.cert, folder.key)
    key = folder.key.read_bytes()
    async with await asyncio.start_server(greet, "127.0.0.1", 0, ssl=tls.context) as server:
        port = server.sockets[0].getsockname()[1]
        before = await certificate_of(port, folder.client())
        folder.write(clients)
        good = folder.key.read_bytes()
        folder.key.write_bytes(key)
        await tls.files.check(at_once=True)
        assert "the former value stays in use" in caplog.text
        assert before == await certificate_of(port, folder.client())
        folder.key.write_bytes(good)
        await tls.files.check(at_once=True)
        assert before != await certificate_of(port, folder.client())


@in_loop
async def test_other_errors_of_a_check_do_not_end_the_checks(tmp_path: Path, token: ReloadedToken) -> None:
    """Files are checked independently of each other."""

    def broken() -> Callable[[], None]:
        raise OSError("disk")

    other = tmp_path / "other"
    other.write_text("1")
    bad = ReloadedFiles("bad", [other], broken)
    async with FileReloader([bad, *token.files], every_s=0.01).life():
        other.write_text("2")
        (tmp_path / "token").write_text("new")
        await eventually(lambda: token.value == "new", what="the token")
