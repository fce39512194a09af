"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler in a network namespace with a bridge for nodes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster import programs
from tests.waiting import wait_for

PREFIX = "lwv-" if os.environ.get("LOAD_WATCHER_CLUSTER") == "v2" else "lwc-"
"""Of the names of network namespaces and control groups. `make cluster` and `make cluster-v2` can run at once."""
NAMESPACE = f"{PREFIX}control"
ADDRESS = "10.90.0.1"
SERVICES = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
"""The address of the Service `kubernetes`: on the loopback interface of the control plane, without kube-proxy."""
STOP_S = 20.0


class ControlPlane:
    """A running control plane; `directory` has its files, and `pki` the files of tests.cluster.pki."""

    def __init__(self, directory: Path, pki: Path):
        self.directory = directory
        self._pki = pki
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all components; return when the API server is ready."""
        (self.directory / "log").mkdir(parents=True, exist_ok=True)
        self._network()
        self.run(programs.kubernetes("etcd"), f"--data-dir={self.directory / 'etcd'}", "--unsafe-no-fsync")
        self.run(programs.kubernetes("kube-apiserver"), *self._apiserver())
        wait_for(self._is_ready, what="the API server to be ready")
        self.run(programs.kubelet("kube-controller-manager"), *self._controller_manager())
        configuration = self.directory / "scheduler.json"
        connection = {"kubeconfig": str(self._pki / "kube-scheduler.conf")}
        scheduler = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": connection,
            "leaderElection": {"leaderElect": False},
        }
        configuration.write_text(json.dumps(scheduler))
        self.run(programs.kubernetes("kube-scheduler"), f"--config={configuration}")
        # kubeadm grants this to the API server, for logs and exec.
        role = ["--clusterrole=system:kubelet-api-admin", "--user=apiserver-kubelet-client"]
        self.kubectl("create", "clusterrolebinding", "apiserver-kubelet", *role)
        group = ["--clusterrole=cluster-admin", "--group=kubeadm:cluster-admins"]
        self.kubectl("create", "clusterrolebinding", "kubeadm:cluster-admins", *group)

    def stop(self) -> None:
        """End all components and remove the network namespace."""
        for name in reversed(self._running):
            self._running[name].terminate()
        for process in self._running.values():
            self._end(process)
        self._running.clear()
        remove_namespace(NAMESPACE)

    def kubectl(self, *arguments: str, given: str | None = None, check: bool = True) -> str:
        """Return what kubectl prints, as the administrator. A failure raises AssertionError unless `check` is false."""
        done = self.kubectl_process(*arguments, given=given)
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def kubectl_process(self, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Return the ended process of kubectl."""
        command = [str(programs.kubernetes("kubectl")), "--kubeconfig", str(self._pki / "admin.conf"), *arguments]
        return subprocess.run(inside(NAMESPACE, *command), input=given, text=True, capture_output=True, check=False)

    def get(self, *arguments: str) -> Any:
        """Return the objects that `kubectl get` prints as JSON."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def _network(self) -> None:
        remove_namespace(NAMESPACE)  # of a run that was killed
        ip("netns", "add", NAMESPACE)
        for command in (
            "link set lo up",
            "link add br0 type bridge",
            "link set br0 up",
            f"addr add {ADDRESS}/24 dev br0",
            f"addr add {SERVICE_ADDRESS}/32 dev lo",
        ):
            ip("-n", NAMESPACE, *command.split())
        subprocess.run(inside(NAMESPACE, "sysctl", "-qw", "net.ipv4.ip_forward=1"), check=True)

    def _is_ready(self) -> bool:
        return self.kubectl_process("get", "--raw", "/readyz").returncode == 0

    def run(self, program: Path, *arguments: str, name: str = "") -> None:
        """Start a program in the network namespace; `stop` ends it."""
        name = name or program.name
        with (self.directory / "log" / f"{name}.log").open("wb") as log:
            command = inside(NAMESPACE, str(program), *arguments)
            self._running[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    @contextlib.contextmanager
    def running(self, program: Path, *arguments: str, name: str) -> Iterator[None]:
        """Run a program for the time of a block."""
        self.run(program, *arguments, name=name)
        try:
            yield
        finally:
            self._end(self._running.pop(name))

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _apiserver(self) -> list[str]:
        pki = self._pki
        return [
            "--etcd-servers=http://127.0.0.1:2379",
            "--bind-address=0.0.0.0",
            f"--advertise-address={ADDRESS}",
            "--secure-port=443",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--kubelet-client-certificate={pki}/kubelet-client.crt",
            f"--kubelet-client-key={pki}/kubelet-client.key",
            # Names of nodes do not resolve here.
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICES}",
            "--allow-privileged=true",
            "--enable-aggregator-routing=true",
            f"--requestheader-client-ca-file={pki}/ca.crt",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki}/front-proxy.crt",
            f"--proxy-client-key-file={pki}/front-proxy.key",
        ]

    def _controller_manager(self) -> list[str]:
        pki = self._pki
        kubeconfig = f"{pki}/kube-controller-manager.conf"
        return [
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--use-service-account-credentials",
            f"--root-ca-file={pki}/ca.crt",
            f"--service-account-private-key-file={pki}/sa.key",
            f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key",
            "--leader-elect=false",
        ]


def inside(namespace: str, *command: str) -> list[str]:
    """Return a command that runs in a network namespace."""
    return ["ip", "netns", "exec", namespace, *command]


def ip(*arguments: str) -> None:
    """Run the command ip. Raises AssertionError with its message."""
    done = subprocess.run(["ip", *arguments], text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


def remove_namespace(name: str) -> None:
    """Remove a network namespace, if there is one, and kill all processes in it."""

    def processes() -> list[str]:
        command = ["ip", "netns", "pids", name]
        return subprocess.run(command, text=True, capture_output=True, check=False).stdout.split()

    def ended() -> bool:
        for process in processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        return not processes()

    wait_for(ended, what=f"the processes in {name} to end")
    subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)
