"""A name server over a real UDP socket, and processes that use it: they have their own resolv.conf, in a mount
namespace."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.service import Service
from tests.waiting import wait_for

ADDRESS = f"127.53.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"  # other processes run tests too
NAMESPACES = os.geteuid() == 0 and shutil.which("unshare") is not None
"""Whether processes here can have a mount namespace."""


class NameServer:
    """Answers each question for an IPv4 address with 127.0.0.1 while it `answers`. `resolv_conf` names it, with these
    `options`, by default with waiting times that are longer than a test. `queries` are the questions that it left
    without a response."""

    def __init__(self, directory: Path, *, answers: bool = False, options: str = "timeout:30 attempts:5") -> None:
        self.answers = answers
        self.queries: list[bytes] = []
        self.resolv_conf = directory / "resolv.conf"
        self.resolv_conf.write_text(f"nameserver {ADDRESS}\noptions {options}\n")
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((ADDRESS, 53))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def wait_for_query(self, word: bytes) -> None:
        """Wait for a question with this label, left without a response."""
        wait_for(lambda: any(word in each for each in self.queries), what=f"a query for {word.decode()}")

    def close(self) -> None:
        self._socket.sendto(b"", (ADDRESS, 53))
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            question, sender = self._socket.recvfrom(4096)
            if not question:
                return
            if self.answers:
                self._socket.sendto(_response(question), sender)
            else:
                self.queries.append(question)

    def command(self, *command: str | Path) -> list[str]:
        """The command with this name server; it has the process id of the shell."""
        mount = 'mount --bind "$0" "$(readlink -f /etc/resolv.conf)" && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, str(self.resolv_conf), *map(str, command)]


def _response(question: bytes) -> bytes:
    """A record with 127.0.0.1 if the question is for IPv4, otherwise none (RFC 1035, 4.1)."""
    end = question.index(b"\0", 12) + 5
    is_ipv4 = question[end - 4 : end - 2] == b"\0\1"
    record = b"\xc0\x0c\0\1\0\1" + bytes(4) + b"\0\4" + socket.inet_aton("127.0.0.1")
    counts = b"\0\1" + (b"\0\1" if is_ipv4 else b"\0\0") + bytes(4)
    return question[:2] + b"\x81\x80" + counts + question[12:end] + (record if is_ipv4 else b"")


class ResolvingService(Service):
    """A service with a name server of its own."""

    def __init__(self, directory: Path, *arguments: str, server: NameServer, **options: object) -> None:
        super().__init__(directory, *arguments, **options)  # type: ignore[arg-type]
        self._server = server

    def command(self) -> Sequence[str | Path]:
        return self._server.command(*super().command())
