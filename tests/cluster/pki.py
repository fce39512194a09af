"""Keys, certificates and kubeconfig files of a cluster, as kubeadm makes them.

The certificate authority has neither keyUsage nor an authority key identifier, as those of EKS and MicroK8s.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = timedelta(days=30)


class Authority:
    """A certificate authority in a directory, which holds NAME.crt and NAME.key of each certificate."""

    def __init__(self, directory: Path, now: datetime):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._now = now
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
        own = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        self._write("ca", self._key, own.sign(self._key, hashes.SHA256()))
        account = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (directory / "sa.key").write_bytes(_pem(account))
        public = account.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (directory / "sa.pub").write_bytes(public)

    def issue(self, name: str, common_name: str, organization: str, alternatives: Sequence[str] = ()) -> None:
        """Write a certificate for a client and server, with its key. `alternatives` are names and addresses."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
                x509.NameAttribute(NameOID.COMMON_NAME, common_name),
            ]
        )
        uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        builder = self._builder(subject, key).add_extension(uses, critical=False)
        if alternatives:
            named = x509.SubjectAlternativeName([_general_name(each) for each in alternatives])
            builder = builder.add_extension(named, critical=False)
        self._write(name, key, builder.sign(self._key, hashes.SHA256()))

    def kubeconfig(self, name: str, server: str) -> Path:
        """Write the kubeconfig file of a certificate; return its path."""
        path = self.directory / f"{name}.conf"
        user = {"client-certificate": str(self.path(name)), "client-key": str(self.path(name, "key"))}
        cluster = {"server": server, "certificate-authority": str(self.path("ca"))}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": name}}],
            "current-context": "context",
        }
        path.write_text(json.dumps(document))
        return path

    def path(self, name: str, suffix: str = "crt") -> Path:
        """Return the path of a certificate or key."""
        return self.directory / f"{name}.{suffix}"

    def _builder(self, subject: x509.Name, key: rsa.RSAPrivateKey) -> x509.CertificateBuilder:
        return x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=self._now - timedelta(minutes=5),
            not_valid_after=self._now + VALID,
        )

    def _write(self, name: str, key: rsa.RSAPrivateKey, certificate: x509.Certificate) -> None:
        self.path(name).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.path(name, "key").write_bytes(_pem(key))
        self.path(name, "key").chmod(0o600)


def make(directory: Path, control_plane: str, service: str, nodes: dict[str, str]) -> Authority:
    """Write what the components and nodes of a cluster need. `nodes` maps names to addresses."""
    authority = Authority(directory, datetime.now(UTC))
    names = ["kubernetes.default.svc", "kubernetes.default", "localhost"]
    authority.issue("apiserver", "kube-apiserver", "kubernetes", [control_plane, service, "127.0.0.1", *names])
    authority.issue("front-proxy", "front-proxy", "kubernetes")
    authority.issue("kubelet-client", "apiserver-kubelet-client", "kubeadm:cluster-admins")
    authority.issue("admin", "admin", "system:masters")
    for name in ("kube-controller-manager", "kube-scheduler"):
        authority.issue(name, f"system:{name}", f"system:{name}")
    for name in nodes:
        authority.issue(name, f"system:node:{name}", "system:nodes")
    for name in ("admin", "kube-controller-manager", "kube-scheduler", *nodes):
        authority.kubeconfig(name, f"https://{control_plane}:443")
    return authority


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
