"""Certificates as in real clusters, and a TLS server that counts the requests that it reads."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import SHUT_RDWR, SHUT_WR, create_server, socket

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)


@dataclass(frozen=True)
class Style:
    """Extensions of the certificates of an authority. `key_usage` and `critical` (basic constraints) are those of the
    authority, `own_id` its key identifier, `issuer_id` the authority key identifier of what it issues."""

    key_usage: bool = True
    critical: bool = True
    own_id: bool = True
    issuer_id: bool = True
    purpose: bool = True


KUBEADM = Style()
EKS = Style(issuer_id=False)
"""The certificate of the API server has no authority key identifier (kubernetes-client/python 2394)."""
MICROK8S = Style(key_usage=False)
"""`openssl req -x509 -subj /CN=10.152.183.1` without keyUsage (kubernetes_asyncio 349)."""
BY_HAND = Style(key_usage=False, critical=False, own_id=False, issuer_id=False, purpose=False)
"""An authority with a common name and basic constraints only."""


def names_of(names: Sequence[str]) -> x509.SubjectAlternativeName:
    def general(name: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            return x509.DNSName(name)

    return x509.SubjectAlternativeName([general(name) for name in names])


def common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])


def usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=True,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


@dataclass(frozen=True)
class Pair:
    """A certificate with its key and, as PEM, the certificates that a server sends with it."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    sent: bytes = b""

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def write(self, directory: Path, name: str) -> tuple[Path, Path]:
        """Write NAME.crt and NAME.key."""
        certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
        certificate.write_bytes(self.pem + self.sent)
        private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key.write_bytes(self.key.private_bytes(serialization.Encoding.PEM, *private))
        return certificate, key


class Authority:
    """A certificate authority, self-signed or with a certificate of `parent`."""

    def __init__(
        self,
        name: str,
        style: Style = KUBEADM,
        *,
        parent: Authority | None = None,
        end: datetime.datetime | None = None,
    ) -> None:
        self.style, self.name, self.key = style, common_name(name), ec.generate_private_key(ec.SECP256R1())
        issuer = self if parent is None else parent
        builder = issuer._begin(self.name, self.key, end=end or NOW + 3650 * DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=style.critical)
        if style.key_usage:
            builder = builder.add_extension(usage(signs=True), critical=True)
        if style.own_id:
            builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), False)
        self.pair = Pair(builder.sign(issuer.key, hashes.SHA256()), self.key)

    @property
    def pem(self) -> bytes:
        return self.pair.pem

    def _begin(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        end: datetime.datetime,
        begin: datetime.datetime | None = None,
    ) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder(self.name, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(begin or min(NOW, end) - 30 * DAY).not_valid_after(end)
        if self.style.issuer_id:
            identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
            builder = builder.add_extension(identifier, critical=False)
        return builder

    def issue(
        self,
        *names: str,
        subject: str = "server",
        begin: datetime.datetime | None = None,
        end: datetime.datetime | None = None,
        sent: bytes = b"",
    ) -> Pair:
        """A certificate for a server or a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._begin(common_name(subject), key, begin=begin, end=end or NOW + 365 * DAY)
        if names:
            builder = builder.add_extension(names_of(names), critical=False)
        if self.style.purpose:
            purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            builder = builder.add_extension(usage(signs=False), critical=True)
        return Pair(builder.sign(self.key, hashes.SHA256()), key, sent)


@dataclass
class TlsServer:
    """Its address, and the requests that it read: their first line, and the subject of the client certificate."""

    port: int
    requests: list[tuple[str, object]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


@contextmanager
def tls_server(pair: Pair, directory: Path, *, clients: Authority | None = None) -> Iterator[TlsServer]:
    """A server with the certificate `pair`, which answers every request with an empty JSON object. `clients` is the
    authority of the client certificates that it requires."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.load_cert_chain(*pair.write(directory, "server"))
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients.pem.decode())
    listener = create_server(("127.0.0.1", 0), backlog=64)
    server = TlsServer(listener.getsockname()[1])

    def answer(plain: socket) -> None:
        try:
            plain.settimeout(30.0)
            with context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False) as connection:
                try:
                    connection.do_handshake()
                except ssl.SSLError:  # closing with unread bytes would reset the connection, and with it the alert
                    with socket(fileno=connection.detach()) as raw:
                        raw.settimeout(30.0)
                        raw.shutdown(SHUT_WR)
                        while raw.recv(65536):
                            pass
                    return
                text = b""
                while b"\r\n\r\n" not in text and (piece := connection.recv(65536)):
                    text += piece
                if not text:
                    return
                certificate = connection.getpeercert()
                server.requests.append((text.split(b"\r\n")[0].decode(), (certificate or {}).get("subject")))
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                connection.sendall(head + b"Content-Length: 2\r\n\r\n{}")
        except OSError:
            plain.close()

    def accept() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(plain,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(SHUT_RDWR)
        listener.close()
        thread.join(30)
