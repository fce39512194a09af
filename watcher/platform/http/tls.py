"""The TLS context of a server, whose certificate, key and CA are read again when their files change."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from watcher.platform.net.tls import verify_as_go
from watcher.platform.reloaded_files import ReloadedFiles

SETTINGS = "server.tls_cert, tls_key and tls_client_ca"


class ServerTls:
    """The files of a server certificate. `context` is the context for the listening socket; each handshake continues in
    the context that was last loaded, so a former CA is not trusted any longer. Raises OSError (ssl.SSLError)."""

    def __init__(self, cert: Path, key: Path | None, client_ca: Path | None = None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._current = self.context = self._read()
        self.context.sni_callback = self._switch
        self.files = ReloadedFiles(SETTINGS, [path for path in (cert, key, client_ca) if path is not None], self._load)

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._cert, self._key)
        # A session that is resumed skips the verification of the client certificate by the current CA.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        if self._client_ca is not None:
            context.load_verify_locations(self._client_ca)
            verify_as_go(context)
            # Optional: probes and the Go client have no certificate. Handlers that need one check whether it was sent.
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _switch(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _load(self) -> Callable[[], None]:
        context = self._read()

        def apply() -> None:
            self._current = context

        return apply
