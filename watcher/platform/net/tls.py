"""TLS of connections as a client: the contexts of all of them, and the causes of refused certificates in words.

A certificate is accepted if Go accepts it, so what works for kubectl works here: keyUsage and key identifiers may be
missing, and an intermediate or server certificate may be the trust anchor. The defaults of Python differ between
versions: 3.13 sets VERIFY_X509_STRICT, which refuses the certificate authorities of EKS and MicroK8s.
"""

from __future__ import annotations

import functools
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from watcher.core.messages import printable, shorten_names

NOT_YET_VALID, EXPIRED = 9, 10
SELF_SIGNED = 18
UNKNOWN_ISSUER = frozenset({2, 7, 19, 20, 21})
"""X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT, _CERT_SIGNATURE_FAILURE, _SELF_SIGNED_CERT_IN_CHAIN,
_UNABLE_TO_GET_ISSUER_CERT_LOCALLY, _UNABLE_TO_VERIFY_LEAF_SIGNATURE. Which of them OpenSSL reports for a wrong
authority depends on names, key identifiers, and the certificates that the server sends."""
OTHER_NAME = frozenset({62, 64})

Certificate = Mapping[str, Any]
"""A certificate as SSLSocket.getpeercert returns it."""


def client_context(
    *, ca_file: str | Path | None = None, ca_data: str | None = None, insecure: bool = False
) -> ssl.SSLContext:
    """The context of a connection as a client. It trusts only the PEM certificates of `ca_file` and `ca_data`, or those
    of the system if both are None. `insecure` accepts every certificate. Raises OSError (ssl.SSLError) and ValueError;
    `file_reason` has their text."""
    if ca_data is not None:
        # A comment may have other characters, which Python refuses. Python takes an empty text for the system's CAs.
        ca_data = ca_data.encode("ascii", "ignore").decode("ascii")
        if not ca_data.strip():
            raise ValueError("it is empty")
    context = ssl.create_default_context(cafile=ca_file, cadata=ca_data)
    verify_as_go(context)
    context.sslobject_class = _ClientConnection
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def verify_as_go(context: ssl.SSLContext) -> None:
    """Verify certificates as Go does, whatever the defaults of this version of Python."""
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT


def system_context() -> ssl.SSLContext:
    """A context that trusts the certificate authorities of the system (or of SSL_CERT_FILE), shared by connections."""
    return _system_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@functools.lru_cache(maxsize=1)
def _system_context(_file: str | None, _directory: str | None) -> ssl.SSLContext:
    return client_context()


def file_reason(error: Exception) -> str:
    """Why PEM files cannot be used: an error of `client_context` or of SSLContext.load_cert_chain in words."""
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        if reason == "KEY_VALUES_MISMATCH":
            return "the key does not belong to the certificate"
        if reason in ("NO_CERTIFICATE_OR_CRL_FOUND", "NO_START_LINE", "") or "PEM lib" in str(error):
            return "it has no certificate or key in PEM format"
        return printable(reason.lower().replace("_", " "))
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return printable(str(error))


# --- refused certificates --------------------------------------------------------------------------------------------


class _ClientConnection(ssl.SSLObject):
    """A connection that puts the cause of a refused certificate into the error's `verify_message`. Only here are the
    certificates of the server known."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as error:
            trusted = self.context.get_ca_certs()
            host = self.server_hostname or ""
            error.verify_message = refusal_cause(error, _received(self), host=host, trusted=trusted, now=time.time())
            raise


def _received(connection: ssl.SSLObject) -> list[Certificate]:
    """The certificates that the server sent, its own first; empty if unknown. The public method is new in Python 3.13,
    and returns bytes, for which the standard library has no decoder."""
    try:
        chain = connection._sslobj.get_unverified_chain()  # type: ignore[attr-defined]
        return [each.get_info() for each in chain or ()]
    except (AttributeError, ValueError, ssl.SSLError):
        return []


def refusal_cause(
    error: ssl.SSLCertVerificationError,
    chain: Sequence[Certificate],
    *,
    host: str,
    trusted: Sequence[Certificate],
    now: float,
) -> str:
    """Why the certificate of `host` was refused. `chain` has the certificates that the server sent, its own first, and
    `trusted` the certificate authorities; `now` is in unix seconds."""
    code, own = error.verify_code, chain[0] if chain else None
    if code in (EXPIRED, NOT_YET_VALID):
        return _outside_validity(code, [*chain, *trusted], now=now) or error.verify_message
    if own is None:
        return error.verify_message
    if code in OTHER_NAME:
        names = shorten_names([name for _, name in own.get("subjectAltName", ())] or _common_names(own), 10)
        return f"it is valid for {names or 'no host name'}, not for {host}"
    if code == SELF_SIGNED:
        return f"it is self-signed ({_name(own, 'subject')}) and is not a trusted certificate"
    if code in UNKNOWN_ISSUER:
        return _unknown_issuer(chain, trusted)
    return f"{error.verify_message} ({_name(own, 'subject')}, issued by {_name(own, 'issuer')})"


def _outside_validity(code: int, certificates: Sequence[Certificate], *, now: float) -> str:
    expired = code == EXPIRED
    field, verb = ("notAfter", "expired on") if expired else ("notBefore", "is valid only from")
    for place, each in enumerate(certificates):
        limit = ssl.cert_time_to_seconds(each[field])
        if (limit < now) == expired:
            what = "it" if place == 0 else f"the certificate of its issuer {_name(each, 'subject')}"
            clock = "%Y-%m-%d %H:%M:%S UTC"
            clocks = time.strftime(clock, time.gmtime(limit)), time.strftime(clock, time.gmtime(now))
            return f"{what} {verb} {clocks[0]}; the clock of this machine shows {clocks[1]}"
    return ""


def _unknown_issuer(chain: Sequence[Certificate], trusted: Sequence[Certificate]) -> str:
    last = chain[-1]
    issuer = _name(last, "issuer")
    if not trusted:
        return f"it was issued by {issuer}, and no certificate authority is trusted"
    if any(each["subject"] == last["issuer"] for each in trusted):
        return f"it was issued by {issuer}; the trusted certificate authority of this name has another key"
    known = f" (trusted: {shorten_names([_name(each, 'subject') for each in trusted], 3)})" if len(trusted) < 10 else ""
    sent = "" if len(chain) > 1 else "; the server sent no intermediate certificate"
    return f"it was issued by {issuer}, which is not a trusted certificate authority{known}{sent}"


def _name(certificate: Certificate, key: str) -> str:
    names = _common_names(certificate, key) or [value for part in certificate.get(key, ()) for _, value in part]
    return printable(", ".join(names)) or "without a name"


def _common_names(certificate: Certificate, key: str = "subject") -> list[str]:
    return [value for part in certificate.get(key, ()) for name, value in part if name == "commonName"]


def certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """The refused certificate in the chain of causes of an error, if there is one."""
    found = tls_error(error)
    return found if isinstance(found, ssl.SSLCertVerificationError) else None


def tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """The TLS error in the chain of causes of an error, if there is one. A closed connection is not a TLS error."""
    while error is not None:
        inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
        if isinstance(inner, ssl.SSLError) and not isinstance(inner, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return inner
        error = error.__cause__
    return None


def tls_reason(error: ssl.SSLError) -> str:
    """A TLS error in words, without the line of OpenSSL's source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server certificate is not trusted: {printable(error.verify_message)}"
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "alert" in reason or "certificate required" in reason:
        return f"the server aborted the TLS handshake: {printable(reason)}"
    if "wrong version number" in reason or "record layer" in reason or "http request" in reason:
        return "the server does not support TLS"
    return f"TLS failed: {printable(reason)}"


def tls_cure(error: ssl.SSLError, *, authority: str, client: str, address: str) -> str:
    """What to do about a TLS error. `authority`, `client` and `address` name the settings of the trusted certificates,
    of the client certificate, and of the server's address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in OTHER_NAME:
            return f"Set {address} to a name of the certificate, or add this name to the certificate."
        if error.verify_code in (EXPIRED, NOT_YET_VALID):
            return "Renew the certificate, or correct the clock of this machine."
        return f"Set {authority} to the certificate authority that issued the certificate."
    reason = tls_reason(error)
    if "aborted" in reason:
        return f"The server may require another client certificate: {client}."
    if "does not support" in reason:
        return f"The server may use http://: check scheme and port of {address}."
    return f"Check {authority} and {client}."
