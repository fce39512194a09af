"""Converts failures below HTTP (name resolution, connections, TLS, timeouts) to errors for the operator.

Three layers of libraries wrap each other's errors, so the informative text ("certificate required", "Connection
refused") is several causes deep, and the outer class is misleading: a rejected certificate is a connection error, a
refused connection a kind of timeout. The whole chain is therefore searched, for the most specific cause first.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence

import requests
import urllib3

from watcher.core.messages import printable
from watcher.providers.base import ProviderError, ProviderMalformed, ProviderRefused, ProviderUnreachable


def translate(error: BaseException, *, tls: bool) -> ProviderError:
    """Convert a failure below HTTP to a ProviderError. The transport adds the address; `tls` states whether the URL
    was https."""
    chain = list(_causes(error))
    for cause in chain:
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return _translate_tls(cause)
    if any(isinstance(cause, requests.exceptions.InvalidURL | UnicodeError) for cause in chain):
        return ProviderRefused("invalid server address", hint="Check the host in provider.address.")
    if any(isinstance(cause, TimeoutError) for cause in chain):
        return ProviderUnreachable("no response in time")
    if any(isinstance(cause, urllib3.exceptions.DecodeError) for cause in chain):
        return ProviderMalformed("the response does not match its content encoding")
    if any(isinstance(cause, socket.gaierror) for cause in chain):
        return ProviderUnreachable("the host name cannot be resolved", hint="Check the host in provider.address.")
    if type(error) is OSError and "invalid path" in str(error):
        # The text of requests names the file, but contains no secret.
        return ProviderRefused(str(error), hint="Check provider.ca_file, provider.client_cert and provider.client_key.")
    hint = ""
    if any(isinstance(cause, ConnectionRefusedError) for cause in chain):
        hint = "Check that the server is running and that host and port of provider.address are correct."
    elif tls:
        hint = "The server may require a client certificate: provider.client_cert."
    return ProviderUnreachable(f"the connection failed: {_innermost(chain)}", hint=hint)


def _translate_tls(error: ssl.SSLError) -> ProviderError:
    """Convert a TLS error. All are refusals, because a retry fails in the same way."""
    reason = (error.reason or "").upper()
    if isinstance(error, ssl.SSLCertVerificationError):
        return ProviderRefused(
            f"the server certificate is not trusted: {printable(error.verify_message)}",
            hint="Set provider.ca_file to the CA that signed it, and use a host name that the certificate covers.",
        )
    if "CERTIFICATE_REQUIRED" in reason or "ALERT" in reason:
        return ProviderRefused(
            f"the server aborted the TLS handshake: {reason.lower().replace('_', ' ')}",
            hint="The server may require another client certificate: provider.client_cert and provider.client_key.",
        )
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason or "HTTP_REQUEST" in reason:
        return ProviderRefused("the server does not support TLS", hint="Use http:// in provider.address.")
    return ProviderRefused(
        f"TLS failed: {printable(reason.lower().replace('_', ' ') or str(error))}",
        hint="provider.ca_file, client_cert and client_key must be PEM files; the key must match the certificate.",
    )


def _causes(error: BaseException) -> Sequence[BaseException]:
    """The error and all nested errors: causes, contexts, and errors that urllib3 stores as reason or argument."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        item = waiting.pop(0)
        if isinstance(item, BaseException) and item not in seen:
            seen.append(item)
            waiting += [item.__cause__, item.__context__, getattr(item, "reason", None), *item.args]
    return seen


def _innermost(chain: Sequence[BaseException]) -> str:
    """The operating system's error text, for example `Connection refused`; default: the class of the innermost
    error."""
    words = [cause.strerror for cause in chain if isinstance(cause, OSError) and cause.strerror]
    return words[-1] if words else printable(type(chain[-1]).__name__)
