"""What it means for the operator when an exchange fails below HTTP: names, connections, TLS, timeouts.

Three layers of libraries wrap each other's errors, so that the one word that helps ("certificate required", "Connection
refused") is several causes deep, and the class on the outside says little: a refused certificate comes as a connection
error, a refused connection as a kind of timeout. So the whole chain is looked through, the most telling cause first.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence

import requests
import urllib3

from watcher.platform.net.redaction import shown
from watcher.providers.base import ProviderError, ProviderMalformed, ProviderRefused, ProviderUnreachable


def translate(error: BaseException, *, tls: bool) -> ProviderError:
    """What a failure below HTTP means for the operator. The message lacks the address, which the transport
    puts before it; `tls` says whether it was https."""
    chain = list(_causes(error))
    for cause in chain:
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return _translate_tls(cause)
    if any(isinstance(cause, requests.exceptions.InvalidURL | UnicodeError) for cause in chain):
        return ProviderRefused("this cannot be the address of a server", hint="Check the host in provider.address.")
    if any(isinstance(cause, TimeoutError) for cause in chain):
        return ProviderUnreachable("it does not answer in time")
    if any(isinstance(cause, urllib3.exceptions.DecodeError) for cause in chain):
        return ProviderMalformed("its answer is not compressed as it says")
    if any(isinstance(cause, socket.gaierror) for cause in chain):
        return ProviderUnreachable("its name cannot be resolved", hint="Check the host in provider.address.")
    if type(error) is OSError and "invalid path" in str(error):
        # requests' own words, which name the file but no secret.
        return ProviderRefused(str(error), hint="Check provider.ca_file, provider.client_cert and provider.client_key.")
    hint = ""
    if any(isinstance(cause, ConnectionRefusedError) for cause in chain):
        hint = "Is it running, and are host and port of provider.address right?"
    elif tls:
        hint = "A server that wants a client certificate may hang up like this: provider.client_cert."
    return ProviderUnreachable(f"the connection failed: {_innermost(chain)}", hint=hint)


def _translate_tls(error: ssl.SSLError) -> ProviderError:
    """TLS will fail the same way each time, so all of it is a refusal."""
    reason = (error.reason or "").upper()
    if isinstance(error, ssl.SSLCertVerificationError):
        return ProviderRefused(
            f"its certificate is not trusted: {shown(error.verify_message)}",
            hint="Set provider.ca_file to the authority that signed it, and ask under a name that it has.",
        )
    if "CERTIFICATE_REQUIRED" in reason or "ALERT" in reason:
        return ProviderRefused(
            f"it ended the TLS handshake: {reason.lower().replace('_', ' ')}",
            hint="It may want a client certificate, or another one: provider.client_cert and provider.client_key.",
        )
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason or "HTTP_REQUEST" in reason:
        return ProviderRefused("it does not speak TLS", hint="Use http:// in provider.address.")
    return ProviderRefused(
        f"TLS failed: {shown(reason.lower().replace('_', ' ') or str(error))}",
        hint="provider.ca_file, client_cert and client_key must be PEM files, and the key the certificate's.",
    )


def _causes(error: BaseException) -> Sequence[BaseException]:
    """The error and all that it hides: causes, contexts, and errors that urllib3 keeps as reason or argument."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        item = waiting.pop(0)
        if isinstance(item, BaseException) and item not in seen:
            seen.append(item)
            waiting += [item.__cause__, item.__context__, getattr(item, "reason", None), *item.args]
    return seen


def _innermost(chain: Sequence[BaseException]) -> str:
    """The operating system's words where it has any: `Connection refused`; else the kind of the failure."""
    words = [cause.strerror for cause in chain if isinstance(cause, OSError) and cause.strerror]
    return words[-1] if words else shown(type(chain[-1]).__name__)
