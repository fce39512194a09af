"""Who we are to the Kubernetes API, and how to know that it is the API.

Inside a cluster a mounted token says so; it is replaced about every hour, so it is read for each request. Outside, a
kubeconfig does, in one of a dozen ways: tokens, files with tokens, client certificates, and with the extra `kube` exec
plug-ins and OIDC (`plugin`). The rest (passwords, impersonation, proxies) is refused by name, since to ask as somebody
else, or as nobody, would only look like missing permissions.

Nothing here keeps what it read: who wants it anew, because it stopped working, calls again.
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

from watcher.core.kubernetes.errors import KubeRefused, shown
from watcher.platform.kube.credential_plugin import Plugin

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
UNSUPPORTED_USER = {
    "username": ("a password", "Kubernetes knows no passwords since 1.19: use a token or a client certificate."),
    "as": ("impersonation", "Use a kubeconfig whose user is the account itself."),
}

KINDS: Mapping[type[Any], str] = {str: "text", bool: "true or false", dict: "table"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API is and as whom we ask. `tls` is None for plain HTTP; `origin` says for people where it is from."""

    server: str
    origin: str
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    plugin: Plugin | None = field(default=None, repr=False)
    tls_server_name: str | None = None

    async def headers(self) -> dict[str, str]:
        """What says who we are, with the token as its file or its plug-in has it now. Raises KubeError."""
        token = self.token if self.plugin is None else await self.plugin.token()
        if self.token_file is not None:
            token = _read(self.token_file, what="the token").strip()
        if self.token_file is not None and not token:
            raise KubeRefused(f"the token file {self.token_file} is empty", hint="Is the service account mounted?")
        if not token.isprintable() or not token.isascii():
            raise KubeRefused(f"the token of {self.origin} is no token: it has characters that a header cannot have")
        return {"Authorization": f"Bearer {token}"} if token else {}


def find_access(
    *,
    kubeconfig: Path | None,
    environ: Mapping[str, str],
    context: str | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """The kubeconfig if one is named (and of that `context`, or the current one), else the pod's service account.
    Raises KubeRefused, saying what is missing."""
    if kubeconfig is not None:
        return from_kubeconfig(kubeconfig, context=context)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environ=environ, service_account=service_account)
    raise KubeRefused(
        "there is no access to a Kubernetes API: no kubeconfig is named, and this is no pod of a cluster",
        hint="Set kubernetes.kubeconfig (or KUBE_CONFIG), or run in a cluster, where KUBERNETES_SERVICE_HOST is set.",
    )


def own_namespace(service_account: Path = SERVICE_ACCOUNT) -> str:
    """The namespace of this pod, "" where this is none."""
    try:
        return (service_account / "namespace").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class AccessFinder:
    """Finds the access when it is called, not before: a kubeconfig may yet be mounted. Two are equal if they were made
    for the same file, not written in between, and the same context: then they lead to the same cluster."""

    kubeconfig: Path | None
    context: str | None
    written: tuple[int, ...] | None
    """Which file it was; None for none. One that was put in its place may be of another cluster."""

    @classmethod
    def of(cls, *, kubeconfig: Path | None, context: str | None) -> Self:
        """For the kubeconfig as it is now, or, without one, the pod's service account."""
        try:
            found = None if kubeconfig is None else kubeconfig.stat()
        except OSError:
            found = None
        written = None if found is None else (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        return cls(kubeconfig, context, written)

    def __call__(self) -> Access:
        """`find_access`, with this process's environment."""
        return find_access(kubeconfig=self.kubeconfig, context=self.context, environ=os.environ)


# --- inside a cluster ------------------------------------------------------------------------------------------------


def in_cluster(*, environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> Access:
    """The pod's service account: its token (read for each request) and the authority of the cluster."""
    host = environ["KUBERNETES_SERVICE_HOST"]
    port = environ.get("KUBERNETES_SERVICE_PORT") or "443"
    server = _checked(f"https://{f'[{host}]' if ':' in host else host}:{port}", where="KUBERNETES_SERVICE_HOST, _PORT")
    token, authority = service_account / "token", service_account / "ca.crt"
    if not token.exists():
        raise KubeRefused(
            f"this pod has no service account: there is no {token}",
            hint="Is automountServiceAccountToken false on the pod or on its service account?",
        )
    tls = _context(_read(authority, what="the cluster's authority"), where=str(authority))
    return Access(server, "the pod's service account", tls=tls, token_file=token)


# --- a kubeconfig ----------------------------------------------------------------------------------------------------


class _Named(msgspec.Struct):
    name: str
    cluster: dict[str, Any] | None = None
    user: dict[str, Any] | None = None
    context: dict[str, Any] | None = None


class _Kubeconfig(msgspec.Struct, rename="kebab"):
    current_context: str = ""
    clusters: list[_Named] | None = None
    users: list[_Named] | None = None
    contexts: list[_Named] | None = None


def from_kubeconfig(path: Path, *, context: str | None = None) -> Access:
    """The context of that name in a kubeconfig, without one its current context. Paths in it are relative to its own
    directory. Raises KubeRefused."""
    text = _read(path, what="the kubeconfig")
    try:
        config = msgspec.yaml.decode(text, type=_Kubeconfig)
    except (msgspec.DecodeError, RecursionError) as error:
        # Not with the parser's words, nor with the cause: both show the line, which may be a token.
        kind = "no kubeconfig" if isinstance(error, msgspec.ValidationError) else "no YAML"
        raise KubeRefused(f"{path} is {kind}", hint="Try kubectl --kubeconfig with it.") from None
    chosen = context or config.current_context
    names = _entry(config.contexts, chosen, "context", path=path).context or {}
    cluster = _entry(config.clusters, names.get("cluster"), "cluster", path=path).cluster or {}
    user = _entry(config.users, names["user"], "user", path=path).user or {} if names.get("user") else {}
    _refuse_unsupported(cluster, user, where=f"{path}, user {names.get('user')}")
    return _access(_Part(cluster, path), _Part(user, path), origin=f"context {chosen} of {path}")


def _entry(entries: list[_Named] | None, name: object, kind: str, *, path: Path) -> _Named:
    for entry in entries or ():
        if entry.name == name:
            return entry
    if not name:
        raise KubeRefused(f"{path} names no {kind}", hint="Set one with kubectl config use-context.")
    raise KubeRefused(
        f"{path} has no {kind} of the name {shown(str(name))}",
        hint="kubectl config view shows what it has; kubernetes.context says which context is meant.",
    )


def _refuse_unsupported(cluster: Mapping[str, Any], user: Mapping[str, Any], *, where: str) -> None:
    for key, (what, hint) in UNSUPPORTED_USER.items():
        if user.get(key):
            raise KubeRefused(f"{where}: {what} is not supported", hint=hint)
    provider = user.get("auth-provider")
    if provider and (not isinstance(provider, dict) or provider.get("name") != "oidc"):
        hint = "Of auth providers there is OIDC alone since Kubernetes 1.26: use an exec plug-in."
        raise KubeRefused(f"{where}: its auth provider is not supported", hint=hint)
    if cluster.get("proxy-url"):
        raise KubeRefused(f"{where}: its cluster has a proxy-url, which is not supported")


@dataclass(frozen=True, slots=True)
class _Part:
    """The `cluster` or `user` of a kubeconfig."""

    content: Mapping[str, Any]
    path: Path

    def get(self, key: str, kind: type[T]) -> T | None:
        """The value of a key. Raises KubeRefused if it is of another type."""
        value = self.content.get(key)
        if value is None or value == "":
            return None
        if not isinstance(value, kind):
            raise KubeRefused(f"{self.path}: {key} is no {KINDS[kind]}")
        return value

    def table(self, key: str) -> Mapping[str, Any] | None:
        """The table that a key names."""
        return self.get(key, dict)

    def file(self, key: str) -> Path | None:
        """The file that a key names."""
        name = self.get(key, str)
        return None if name is None else self.path.parent / name

    def pem(self, key: str) -> str | None:
        """What `key`-data has in base 64, else what is in the file that `key` names."""
        if data := self.get(f"{key}-data", str):
            try:
                return b64decode(data, validate=True).decode("ascii")
            except ValueError:
                raise KubeRefused(f"{self.path}: {key}-data is no PEM file in base 64") from None
        file = self.file(key)
        return None if file is None else _read(file, what=key)


def _access(cluster: _Part, user: _Part, *, origin: str) -> Access:
    server = _checked(cluster.get("server", str) or "", where=f"server in {cluster.path}")
    token_file = user.file("tokenFile")  # kubectl too lets it win over a token
    tls = None
    if server.startswith("https:"):
        authority = cluster.pem("certificate-authority")
        insecure = bool(cluster.get("insecure-skip-tls-verify", bool))
        tls = _context(authority, where=str(cluster.path), insecure=insecure)
        _show_certificate(tls, user)
    token = "" if token_file else user.get("token", str) or ""
    brought = not token and token_file is None and (user.table("exec") or user.table("auth-provider"))
    return Access(
        server,
        origin,
        tls=tls,
        token=token,
        token_file=token_file,
        plugin=Plugin(user.content, path=user.path, tls=tls) if brought else None,
        tls_server_name=cluster.get("tls-server-name", str),
    )


def _show_certificate(tls: ssl.SSLContext, user: _Part) -> None:
    """Let the context show the user's client certificate, if there is one. OpenSSL reads it from files only."""
    certificate, key = user.pem("client-certificate"), user.pem("client-key")
    if certificate is None:
        return
    with tempfile.TemporaryDirectory(prefix="load-watcher-") as directory:  # of mode 0700
        both = Path(directory) / "client.pem"
        both.write_text(f"{certificate}\n{key or ''}", encoding="ascii")
        try:
            tls.load_cert_chain(both, password=lambda: "")  # without it OpenSSL would ask on the terminal
        except (ssl.SSLError, ValueError, OSError):
            raise KubeRefused(
                f"{user.path}: client-certificate and client-key are no PEM files, or do not belong together"
            ) from None


# --- pieces ----------------------------------------------------------------------------------------------------------


def _read(path: Path, *, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else "not a text"
        raise KubeRefused(f"{what} cannot be read from {path}: {reason}") from error


def _checked(server: str, *, where: str) -> str:
    try:
        parts = urlsplit(server)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = None
    if not usable or parts.username or parts.password or parts.query:
        raise KubeRefused(f"{where} is no address like https://10.0.0.1:6443")
    return server.rstrip("/")


def _context(authority: str | None, *, where: str, insecure: bool = False) -> ssl.SSLContext:
    """TLS that trusts this authority alone, or those of the system where there is none."""
    if authority is not None and not authority.strip():  # which Python would take for "those of the system"
        raise KubeRefused(f"the certificate authority of {where} is no PEM file: it is empty")
    try:
        context = ssl.create_default_context(cadata=authority)
    except (ssl.SSLError, ValueError) as error:
        raise KubeRefused(f"the certificate authority of {where} is no PEM file") from error
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
