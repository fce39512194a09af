"""A real Kubernetes control plane: etcd, kube-apiserver and kube-scheduler, as `scripts/go-programs` builds them.

Tests that need it are marked `real_apiserver`. LOAD_WATCHER_KUBERNETES selects the version, such as 1.35; the default
is 1.36. Without the programs, the tests are skipped, or fail under LOAD_WATCHER_REQUIRE_REAL=1.
"""

import base64
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.modules.programs import kubernetes
from tests.real.parts import Server, free_port
from tests.waiting import wait_for
from watcher.core.kubernetes.wire import Resource

VARIABLES = {
    "kube-apiserver": "KUBE_APISERVER_BIN",
    "kube-scheduler": "KUBE_SCHEDULER_BIN",
    "kubectl": "KUBECTL_BIN",
    "etcd": "ETCD_BIN",
}
"""Environment variables with the path of a program that replaces the built one."""
DEFAULT_NAMESPACE = "/api/v1/namespaces/default"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ISSUER = "https://kubernetes.default.svc"
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
RESTRICTED = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""For a container in a namespace with the Pod Security level restricted, as that of the shipped overlays."""
TOKEN_SPEC = {"audiences": [ISSUER], "expirationSeconds": 600}
READY_SECONDS = 90.0  # 5 s on an idle machine; here it shares two cores with other processes


def find_kube_program(program: str) -> Path:
    """Return the path of a program; if it is missing, the test is skipped, or fails under LOAD_WATCHER_REQUIRE_REAL."""
    if named := os.environ.get(VARIABLES[program]):
        return Path(named)
    module = kubernetes()
    built = module.directory / program
    if built.exists():
        return built
    reason = f"{program} is neither in {module.directory} nor in {VARIABLES[program]}: run make kube"
    if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


class Etcd(Server):
    """A real etcd, whose data are removed with the test."""

    name = "etcd"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._program = find_kube_program("etcd")
        self._peer_port = free_port()

    def command(self) -> Sequence[str | Path]:
        peer = f"http://127.0.0.1:{self._peer_port}"
        return [
            self._program,
            "--data-dir=data",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def is_ready(self) -> bool:
        return self.session.get(f"{self.url}/health", timeout=5).json()["health"] == "true"

    def call(self, path: str, **body: Any) -> Any:
        """Call its JSON gateway."""
        answer = self.session.post(f"{self.url}/v3/{path}", json=body, timeout=30)
        assert answer.ok, answer.text
        return answer.json()

    def remove(self, key: str) -> None:
        """Remove an object behind the API server's back."""
        assert self.call("kv/deleterange", key=base64.b64encode(key.encode()).decode())["deleted"] == "1"

    def compact(self) -> None:
        """Compact: remove all older versions."""
        revision = self.call("kv/range", key=base64.b64encode(b"x").decode())["header"]["revision"]
        self.call("kv/compaction", revision=revision, physical=True)


@dataclass(frozen=True)
class AuditedRequest:
    """A request as the audit log has it. `resource` includes the subresource: "pods/eviction"."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    allowed: bool
    code: int


class ApiServer(Server):
    """A real kube-apiserver on its own etcd, over TLS, with an audit log. `token` is that of its administrator; the
    token "nobody's" belongs to a user without any right; client.pem is a client certificate of the group
    system:masters.

    No controllers and no kubelets run: nothing fills the status of a PodDisruptionBudget, and a bound pod that is
    deleted stays until it is deleted with a grace period of 0.
    """

    name = "kube-apiserver"

    def __init__(self, directory: Path, etcd: Etcd) -> None:
        super().__init__(directory)
        self.token, self.nobodys = secrets.token_hex(16), secrets.token_hex(16)
        self.etcd = etcd
        self._program = find_kube_program("kube-apiserver")
        self._write_files()
        self.session.verify = str(directory / "ca.pem")
        self.session.headers["Authorization"] = f"Bearer {self.token}"

    def _write_files(self) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.directory / "ca.pem"))
        server = authority.issue_cert("127.0.0.1", "localhost")
        server.private_key_pem.write_to_path(str(self.directory / "server.key"))
        server.cert_chain_pems[0].write_to_path(str(self.directory / "server.pem"))
        client = authority.issue_cert("admin.test", common_name="admin", organization_name="system:masters")
        client.private_key_and_cert_chain_pem.write_to_path(str(self.directory / "client.pem"))
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (self.directory / "accounts.key").write_bytes(key)
        (self.directory / "audit.json").write_text(json.dumps(AUDIT_POLICY))
        tokens = [(self.token, "admin", '1,"system:masters"'), (self.nobodys, "nobody", "2")]
        (self.directory / "tokens.csv").write_text("".join(f"{','.join(line)}\n" for line in tokens))

    def command(self) -> Sequence[str | Path]:
        return [
            self._program,
            f"--etcd-servers={self.etcd.url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            "--tls-cert-file=server.pem",
            "--tls-private-key-file=server.key",
            "--client-ca-file=ca.pem",
            "--token-auth-file=tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-key-file=accounts.key",
            "--service-account-signing-key-file=accounts.key",
            f"--service-account-issuer={ISSUER}",
            "--audit-policy-file=audit.json",
            "--audit-log-path=audit.log",
            "--audit-log-mode=blocking",  # a request is in the log before its response is sent
            "--service-cluster-ip-range=10.0.0.0/24",
            "--endpoint-reconciler-type=none",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,NodeRestriction",
        ]

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        # The namespace default is created a moment later.
        return all(self.session.get(f"{self.url}{path}", timeout=10).ok for path in ("/readyz", DEFAULT_NAMESPACE))

    def wait_ready(self, timeout: float = READY_SECONDS) -> "ApiServer":
        super().wait_ready(timeout)
        return self

    def ask(self, method: str, path: str, body: Any = None, **options: Any) -> requests.Response:
        """Send a request as its administrator."""
        return self.session.request(method, f"{self.url}{path}", json=body, timeout=30, **options)

    def make(self, path: str, **content: Any) -> Any:
        """Create an object in a collection, and return it."""
        answer = self.ask("POST", path, content)
        assert answer.status_code == 201, f"{answer.status_code} {answer.text}"
        return answer.json()

    def define(self, resource: Resource[Any], kind: str, *, schema: dict[str, Any] | None = None) -> str:
        """Install a CustomResourceDefinition of the cluster's scope, which checks nothing without a schema; returns its
        name."""
        name = resource.full_name
        schema = schema or {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": resource.version, "served": True, "storage": True, "subresources": {"status": {}}}
        self.make(
            DEFINITIONS,
            metadata={"name": name},
            spec={
                "group": resource.group,
                "scope": "Cluster",
                "names": {"plural": resource.plural, "kind": kind},
                "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
            },
        )
        wait_for(lambda: self.ask("GET", resource.path).ok, what=f"{name} to be served", timeout=READY_SECONDS)
        return name

    def account_token(self, account: str, *, node: str = "") -> str:
        """Return a token of a ServiceAccount, NAMESPACE/NAME, for the shortest time that the API server permits. With
        `node`, it is bound to a pod of the account on this node, as the token that the kubelet mounts."""
        namespace, _, name = account.partition("/")
        spec: dict[str, Any] = dict(TOKEN_SPEC)
        if node:
            pods, pod = f"/api/v1/namespaces/{namespace}/pods", f"{name}-on-{node}"
            main = {"name": "main", "image": "x", "securityContext": RESTRICTED}
            inside = {"nodeName": node, "serviceAccountName": name, "containers": [main]}

            def made() -> bool:
                """409 if it exists; the API server refuses it until its cache has a new account (403)."""
                answer = self.ask("POST", pods, {"metadata": {"name": pod}, "spec": inside})
                return answer.status_code in (201, 409)

            wait_for(made, what=f"a pod of {account}")
            found = self.ask("GET", f"{pods}/{pod}").json()
            reference = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": found["metadata"]["uid"]}
            spec["boundObjectRef"] = reference
        answer = self.make(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", spec=spec)
        token: str = answer["status"]["token"]
        return token

    def audited(self, account: str) -> list[AuditedRequest]:
        """Return the requests of a ServiceAccount, NAMESPACE/NAME, to resources; the oldest first."""
        user = f"system:serviceaccount:{account.replace('/', ':')}"
        lines = (self.directory / "audit.log").read_text().splitlines()
        events = [json.loads(line) for line in lines if f'"{user}"' in line]
        return [_read_audit_event(event) for event in events if "resource" in event.get("objectRef", {})]

    def kubeconfig(self, path: Path, **user: Any) -> Path:
        """Write a kubeconfig, by default with the administrator's token."""
        cluster = {"server": self.url, "certificate-authority": str(self.directory / "ca.pem")}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "real",
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "tester"}}],
            "clusters": [{"name": "real", "cluster": cluster}],
            "users": [{"name": "tester", "user": user or {"token": self.token}}],
        }
        path.write_text(json.dumps(content))
        return path


def _read_audit_event(event: dict[str, Any]) -> AuditedRequest:
    about = event["objectRef"]
    return AuditedRequest(
        user=event["user"]["username"],
        verb=event["verb"],
        group=about.get("apiGroup", ""),
        resource="/".join(filter(None, (about["resource"], about.get("subresource")))),
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        allowed=event["annotations"].get("authorization.k8s.io/decision") == "allow",
        code=event.get("responseStatus", {}).get("code", 0),
    )


class Scheduler(Server):
    """A real kube-scheduler for an API server; `config` is further content of its KubeSchedulerConfiguration, for
    example extenders."""

    name = "kube-scheduler"

    def __init__(self, directory: Path, api: ApiServer, **config: Any) -> None:
        super().__init__(directory)
        self._program = find_kube_program("kube-scheduler")
        self._config = directory / "scheduler.json"  # JSON is YAML
        whole = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(api.kubeconfig(directory / "kubeconfig"))},
            "leaderElection": {"leaderElect": False},
            **config,
        }
        self._config.write_text(json.dumps(whole))
        self._certificate = [f"--tls-cert-file={api.directory}/server.pem"]
        self._certificate += [f"--tls-private-key-file={api.directory}/server.key"]
        self.session.verify = str(api.directory / "ca.pem")

    def command(self) -> Sequence[str | Path]:
        return [
            self._program,
            f"--config={self._config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            *self._certificate,
        ]

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        return self.session.get(f"{self.url}/healthz", timeout=10).ok
