"""Credentials for the Kubernetes API, and the certificate authority that identifies its server.

Inside a cluster a mounted service account token is used; it is replaced about every hour, so it is read for each
request. Outside, a kubeconfig is used: tokens, token files, client certificates and, with the extra `kube`, exec
plug-ins and OIDC (`plugin`). Other methods (passwords, impersonation, proxies) are rejected by name, because requests
with another or no identity would fail with misleading permission errors.

This module caches nothing: to read renewed credentials, call it again.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from watcher.core.kubernetes.errors import KubeRefused
from watcher.core.messages import printable
from watcher.decoding.text import decode_text, read_text
from watcher.decoding.yaml_text import decode_yaml
from watcher.platform.kube.credential_plugin import CredentialPlugin
from watcher.platform.net.listening import host_port
from watcher.platform.net.tls import client_context, file_reason

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
UNSUPPORTED_USER = {
    "username": ("a password", "Kubernetes 1.19 removed basic authentication: use a token or a client certificate."),
    "as": ("impersonation", "Use a kubeconfig with the credentials of that account."),
}

KINDS: Mapping[type[Any], str] = {str: "a string", bool: "true or false", dict: "a mapping"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KubeAccess:
    """Address of the API and the credentials for it. `tls` is None for plain HTTP; `origin` describes the source of the
    credentials for messages."""

    server: str
    origin: str
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    plugin: CredentialPlugin | None = field(default=None, repr=False)
    tls_server_name: str | None = None
    authority: Path | None = None
    """The file with the trusted certificates of `tls`, to read it again after it was replaced."""

    async def headers(self) -> dict[str, str]:
        """The Authorization header, with the token currently in its file or returned by its plug-in. Raises
        KubeError."""
        token = self.token if self.plugin is None else await self.plugin.token()
        if self.token_file is not None:
            token = _read(self.token_file, what="the token").strip()
        if self.token_file is not None and not token:
            raise KubeRefused(
                f"the token file {self.token_file} is empty", hint="Check that the service account is mounted."
            )
        if not token.isprintable() or not token.isascii():
            raise KubeRefused(f"the token of {self.origin} is invalid: it has characters not allowed in a header")
        return {"Authorization": f"Bearer {token}"} if token else {}


def find_access(
    *,
    kubeconfig: Path | None,
    environ: Mapping[str, str],
    context: str | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> KubeAccess:
    """Return the access of the kubeconfig if one is given (its context `context`, default: the current one), otherwise
    of the pod's service account. Raises KubeRefused, naming the missing part."""
    if kubeconfig is not None:
        return from_kubeconfig(kubeconfig, context=context)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environ=environ, service_account=service_account)
    raise KubeRefused(
        "no access to a Kubernetes API: no kubeconfig is configured, and this process does not run in a pod",
        hint="Set kubernetes.kubeconfig (or KUBE_CONFIG), or run in a cluster, which sets KUBERNETES_SERVICE_HOST.",
    )


def own_namespace(service_account: Path = SERVICE_ACCOUNT) -> str:
    """The namespace of this pod; "" outside a pod."""
    try:
        return read_text(service_account / "namespace").strip()
    except (OSError, msgspec.DecodeError):
        return ""


@dataclass(frozen=True, slots=True)
class AccessFinder:
    """Finds the access when called, not earlier, because a kubeconfig may be mounted later. Two finders are equal if
    they were created for the same file, unchanged in between, and the same context: they then lead to the same
    cluster."""

    kubeconfig: Path | None
    context: str | None
    written: tuple[int, ...] | None
    """Device, inode, size and modification time of the file; None if there is none. A replaced file may belong to
    another cluster."""

    @classmethod
    def of(cls, kubeconfig: Path | None, context: str | None = None) -> Self:
        """Create a finder for the kubeconfig as it is now, or for the pod's service account if none is given."""
        try:
            found = None if kubeconfig is None else kubeconfig.stat()
        except OSError:
            found = None
        written = None if found is None else (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        return cls(kubeconfig, context, written)

    def __call__(self) -> KubeAccess:
        """Call `find_access` with this process's environment."""
        return find_access(kubeconfig=self.kubeconfig, context=self.context, environ=os.environ)


# --- inside a cluster ------------------------------------------------------------------------------------------------


def in_cluster(*, environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> KubeAccess:
    """Access by the pod's service account: its token (read for each request) and the cluster's certificate
    authority."""
    host = environ["KUBERNETES_SERVICE_HOST"]
    port = environ.get("KUBERNETES_SERVICE_PORT") or "443"
    server = _checked(f"https://{host_port(host, port)}", where="KUBERNETES_SERVICE_HOST, _PORT")
    token, authority = service_account / "token", service_account / "ca.crt"
    if not token.exists():
        raise KubeRefused(
            f"this pod has no service account token: {token} does not exist",
            hint="Check automountServiceAccountToken of the pod and of its service account.",
        )
    tls = _context(_read(authority, what="the cluster's authority"), where=str(authority))
    return KubeAccess(server, "the pod's service account", tls=tls, token_file=token)


# --- a kubeconfig ----------------------------------------------------------------------------------------------------


class _KubeconfigEntry(msgspec.Struct):
    name: str
    cluster: dict[str, Any] | None = None
    user: dict[str, Any] | None = None
    context: dict[str, Any] | None = None


class _Kubeconfig(msgspec.Struct, rename="kebab"):
    current_context: str = ""
    clusters: list[_KubeconfigEntry] | None = None
    users: list[_KubeconfigEntry] | None = None
    contexts: list[_KubeconfigEntry] | None = None


def from_kubeconfig(path: Path, *, context: str | None = None) -> KubeAccess:
    """Access by a context of a kubeconfig (default: its current context). Paths in it are relative to its own
    directory. Raises KubeRefused."""
    text = _read(path, what="the kubeconfig")
    try:
        config = decode_yaml(text, type=_Kubeconfig)
    except msgspec.DecodeError as error:
        # Without the parser's message and without the cause: both contain the line, which may contain a token.
        kind = "not a kubeconfig" if isinstance(error, msgspec.ValidationError) else "not valid YAML"
        raise KubeRefused(f"{path} is {kind}", hint="Test it with kubectl --kubeconfig.") from None
    chosen = context or config.current_context
    names = _entry(config.contexts, chosen, "context", path=path).context or {}
    cluster = _entry(config.clusters, names.get("cluster"), "cluster", path=path).cluster or {}
    user = _entry(config.users, names["user"], "user", path=path).user or {} if names.get("user") else {}
    _refuse_unsupported(cluster, user, where=f"{path}, user {names.get('user')}")
    return _access(
        _KubeconfigSection(cluster, path), _KubeconfigSection(user, path), origin=f"context {chosen} of {path}"
    )


def _entry(entries: list[_KubeconfigEntry] | None, name: object, kind: str, *, path: Path) -> _KubeconfigEntry:
    for entry in entries or ():
        if entry.name == name:
            return entry
    if not name:
        raise KubeRefused(f"{path} does not name a {kind}", hint="Set one with kubectl config use-context.")
    raise KubeRefused(
        f"{path} has no {kind} named {printable(str(name))}",
        hint="kubectl config view shows its content; kubernetes.context selects the context.",
    )


def _refuse_unsupported(cluster: Mapping[str, Any], user: Mapping[str, Any], *, where: str) -> None:
    for key, (what, hint) in UNSUPPORTED_USER.items():
        if user.get(key):
            raise KubeRefused(f"{where}: {what} is not supported", hint=hint)
    provider = user.get("auth-provider")
    if provider and (not isinstance(provider, dict) or provider.get("name") != "oidc"):
        hint = "Since Kubernetes 1.26, OIDC is the only auth provider: use an exec plug-in."
        raise KubeRefused(f"{where}: its auth provider is not supported", hint=hint)
    if cluster.get("proxy-url"):
        raise KubeRefused(f"{where}: its cluster has a proxy-url, which is not supported")


@dataclass(frozen=True, slots=True)
class _KubeconfigSection:
    """The `cluster` or `user` of a kubeconfig."""

    content: Mapping[str, Any]
    path: Path

    def get(self, key: str, kind: type[T]) -> T | None:
        """The value of a key; None if missing or empty. Raises KubeRefused if it has another type."""
        value = self.content.get(key)
        if value is None or value == "":
            return None
        if not isinstance(value, kind):
            raise KubeRefused(f"{self.path}: {key} must be {KINDS[kind]}")
        return value

    def table(self, key: str) -> Mapping[str, Any] | None:
        """The mapping under a key; None if missing."""
        return self.get(key, dict)

    def file(self, key: str) -> Path | None:
        """The file whose path is under a key, relative to the kubeconfig's directory; None if missing."""
        name = self.get(key, str)
        return None if name is None else self.path.parent / name

    def origin(self, key: str) -> str:
        """Where the text of `pem` is, for messages: the file under `key`, or the key in the kubeconfig."""
        file = None if self.content.get(f"{key}-data") else self.file(key)
        return f"{self.path}: {key}-data" if file is None else str(file)

    def pem(self, key: str) -> str | None:
        """PEM text: decoded from `key`-data (base64), otherwise read from the file under `key`; None if neither
        exists."""
        if data := self.get(f"{key}-data", str):
            try:
                return decode_text(b64decode(data, validate=True))
            except ValueError:
                raise KubeRefused(f"{self.path}: {key}-data is not a PEM file in base64") from None
        file = self.file(key)
        return None if file is None else _read(file, what=key)


def _access(cluster: _KubeconfigSection, user: _KubeconfigSection, *, origin: str) -> KubeAccess:
    server = _checked(cluster.get("server", str) or "", where=f"server in {cluster.path}")
    token_file = user.file("tokenFile")  # takes precedence over a token, as in kubectl
    tls = None
    if server.startswith("https:"):
        authority = cluster.pem("certificate-authority")
        insecure = bool(cluster.get("insecure-skip-tls-verify", bool))
        tls = _context(authority, where=cluster.origin("certificate-authority"), insecure=insecure)
        _show_certificate(tls, user)
    token = "" if token_file else user.get("token", str) or ""
    brought = not token and token_file is None and (user.table("exec") or user.table("auth-provider"))
    return KubeAccess(
        server,
        origin,
        tls=tls,
        token=token,
        token_file=token_file,
        plugin=CredentialPlugin(user.content, path=user.path, tls=tls) if brought else None,
        tls_server_name=cluster.get("tls-server-name", str),
    )


def _show_certificate(tls: ssl.SSLContext, user: _KubeconfigSection) -> None:
    """Load the user's client certificate, if there is one, into the TLS context. OpenSSL reads it from files only."""
    certificate, key = user.pem("client-certificate"), user.pem("client-key")
    if certificate is None:
        return
    with tempfile.TemporaryDirectory(prefix="load-watcher-") as directory:  # mode 0700
        both = Path(directory) / "client.pem"
        try:
            both.write_text(f"{certificate}\n{key or ''}", encoding="ascii")
            tls.load_cert_chain(both, password=lambda: "")  # without it OpenSSL would prompt on the terminal
        except (ssl.SSLError, ValueError, OSError):
            raise KubeRefused(
                f"{user.path}: client-certificate and client-key are not PEM files, or do not match"
            ) from None


# --- pieces ----------------------------------------------------------------------------------------------------------


def _read(path: Path, *, what: str) -> str:
    try:
        return read_text(path)
    except (OSError, msgspec.DecodeError) as error:
        reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else "not UTF-8 text"
        raise KubeRefused(f"{what} cannot be read from {path}: {reason}") from error


def _checked(server: str, *, where: str) -> str:
    try:
        parts = urlsplit(server)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = None
    if not usable or parts.username or parts.password or parts.query:
        raise KubeRefused(f"{where} is not an address like https://10.0.0.1:6443")
    return server.rstrip("/")


def _context(authority: str | None, *, where: str, insecure: bool = False) -> ssl.SSLContext:
    """A TLS context that trusts only this certificate authority, or the system's authorities if it is None."""
    try:
        return client_context(ca_data=authority, insecure=insecure)
    except (ssl.SSLError, ValueError) as error:
        raise KubeRefused(f"the certificate authority {where} is not a PEM file: {file_reason(error)}") from error
