"""A real containerd with runc and its CRI and NRI plug-ins, driven by crictl; requires root and writable cgroups.

The only image has a static busybox; it is also the image of pod sandboxes. Pods use the network of the host, so that no
network plug-in is needed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.modules import programs
from tests.real.parts import Server
from tests.waiting import wait_for

IMAGE = "load-watcher.test/busybox:1"
CGROUPS = Path("/sys/fs/cgroup")
CRICTL_S = 60
LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def need_containerd() -> Path:
    """The directory of the programs; without them, root, or busybox, tests are skipped, or fail in make containers."""
    module = programs.containers()
    reason = ""
    if module.missing:
        reason = f"{', '.join(module.missing)} are missing in {module.directory}: run make containers"
    elif os.geteuid() != 0:
        reason = "containers require root"
    elif shutil.which("busybox") is None:
        reason = "busybox is missing: apt-get install busybox-static"
    if reason and os.environ.get("LOAD_WATCHER_CONTAINERS") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    return module.directory


class Containerd(Server):
    """A containerd in `directory`, whose path must be short: unix sockets are below it."""

    name = "containerd"

    def __init__(self, directory: Path, *, required: Sequence[str] = ()) -> None:
        self._programs = need_containerd()
        super().__init__(directory)
        self.socket, self.nri_socket = directory / "containerd.sock", directory / "nri.sock"
        self.pods: list[str] = []
        self.group = f"load-watcher-test-{os.getpid()}-{secrets.token_hex(4)}"
        (directory / "config.toml").write_text(self._config(required))

    def _config(self, required: Sequence[str]) -> str:
        """The settings. Not every machine lets root lower oom_score_adj, which containerd does by default."""
        where = self.directory
        return f"""
            version = 3
            root = "{where}/root"
            state = "{where}/state"
            [grpc]
            address = "{self.socket}"
            [plugins."io.containerd.cri.v1.images".pinned_images]
            sandbox = "{IMAGE}"
            [plugins."io.containerd.cri.v1.runtime"]
            restrict_oom_score_adj = true
            [plugins."io.containerd.cri.v1.runtime".cni]
            bin_dirs = ["{where}/cni"]
            conf_dir = "{where}/cni"
            [plugins."io.containerd.nri.v1.nri"]
            socket_path = "{self.nri_socket}"
            plugin_path = "{where}/nri-plugins"
            plugin_config_path = "{where}/nri-conf"
            [plugins."io.containerd.nri.v1.nri".default_validator]
            enable = {str(bool(required)).lower()}
            required_plugins = {json.dumps(list(required))}
        """

    def command(self) -> Sequence[str | Path]:
        return [self._programs / "containerd", "--config", self.directory / "config.toml"]

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}"}

    def is_ready(self) -> bool:
        return self.socket.exists() and self._crictl("version", check=False).returncode == 0

    def load_image(self) -> None:
        """Make the image and import it."""
        path = self.directory / "image.tar"
        write_image(path, IMAGE, Path(str(shutil.which("busybox"))))
        ctr = [self._programs / "ctr", "--address", self.socket, "--namespace", "k8s.io", "images", "import", path]
        subprocess.run(list(map(str, ctr)), check=True, capture_output=True, timeout=CRICTL_S)

    def run_pod(self, name: str, uid: str, annotations: Mapping[str, str]) -> str:
        """Run a pod sandbox; return its id. Raises subprocess.CalledProcessError."""
        config = self._pod(name, uid, annotations)
        self.pods.append(self._crictl("runp", config).stdout.strip())
        return self.pods[-1]

    def create(self, pod: str, name: str, uid: str, annotations: Mapping[str, str], *, container: str) -> str:
        """Create a container that waits, with the labels of the kubelet; return its id. Raises
        subprocess.CalledProcessError."""
        path = self.directory / f"{uid}-{container}.json"
        resources = {"cpu_shares": 512, "cpu_period": 100_000}
        namespace, _, short = name.partition("/")
        labels = {"container.name": container, "pod.name": short, "pod.namespace": namespace, "pod.uid": uid}
        made = {
            "metadata": {"name": container},
            "labels": {f"io.kubernetes.{key}": value for key, value in labels.items()},
            "image": {"image": IMAGE},
            "command": ["/bin/sleep", "100000"],
            "log_path": f"{container}.log",
            "linux": {"resources": resources},
        }
        path.write_text(json.dumps(made))
        return self._crictl("create", pod, path, self._pod(name, uid, annotations)).stdout.strip()

    def start_container(self, id: str) -> int:
        """Start a container; return the id of its process."""
        self._crictl("start", id)
        return int(json.loads(self._crictl("inspect", id).stdout)["info"]["pid"])

    def spec(self, id: str) -> Mapping[str, Any]:
        """The OCI spec of a container."""
        found: Mapping[str, Any] = json.loads(self._crictl("inspect", id).stdout)["info"]["runtimeSpec"]
        return found

    def remove_pod(self, pod: str) -> None:
        """Stop and remove a pod and its containers."""
        self._crictl("stopp", pod)
        self._crictl("rmp", "--force", pod)
        self.pods.remove(pod)

    def close(self) -> None:
        """End the containers and containerd, and unmount what it mounted."""
        for pod in list(self.pods):
            with suppress(subprocess.SubprocessError):
                self.remove_pod(pod)
        self.stop()
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if (mounted := line.split()[1]).startswith(f"{self.directory}/"):
                subprocess.run(["umount", "--lazy", mounted], check=False, capture_output=True)
        for top in [CGROUPS / self.group, *CGROUPS.glob(f"*/{self.group}")]:
            for group, _, _ in os.walk(top, topdown=False):
                wait_for(partial(_removed, Path(group)), what=f"{group} to be free")

    def _pod(self, name: str, uid: str, annotations: Mapping[str, str]) -> Path:
        namespace, _, short = name.partition("/")
        made = {
            "metadata": {"name": short, "namespace": namespace, "uid": uid},
            "annotations": dict(annotations),
            "log_directory": str(self.directory / "logs"),
            "linux": {
                "cgroup_parent": f"/{self.group}/kubepods/burstable/pod{uid}",
                "security_context": {"namespace_options": {"network": 2}},
            },
        }
        path = self.directory / f"{uid}.json"
        path.write_text(json.dumps(made))
        return path

    def _crictl(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        at = f"unix://{self.socket}"
        flags = ["--config", "/dev/null", "--runtime-endpoint", at, "--image-endpoint", at, "--timeout", f"{CRICTL_S}s"]
        return subprocess.run(
            [str(self._programs / "crictl"), *flags, *map(str, arguments)],
            check=check,
            capture_output=True,
            text=True,
            timeout=CRICTL_S,
        )


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def allowed_cpus(pid: int) -> str:
    """The CPUs on which the kernel runs a process."""
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return found[1]


def write_image(path: Path, name: str, busybox: Path) -> None:
    """Write an image in the OCI layout, as a tar file, with busybox as /bin/sleep."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        for folder in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            files.addfile(entry)
        _put(files, "bin/sleep", busybox.read_bytes(), mode=0o755)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    with tarfile.open(path, "w") as image:
        layers = [_blob(image, LAYER, layer.getvalue())]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/bin/sleep", "100000"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
        content = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _blob(image, CONFIG, json.dumps(config).encode()),
            "layers": layers,
        }
        manifest = _blob(image, MANIFEST, json.dumps(content).encode())
        index = {"schemaVersion": 2, "manifests": [{**manifest, "annotations": {"io.containerd.image.name": name}}]}
        _put(image, "index.json", json.dumps(index).encode())
        _put(image, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')


def _blob(image: tarfile.TarFile, kind: str, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    _put(image, f"blobs/sha256/{digest}", data)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}


def _put(archive: tarfile.TarFile, name: str, data: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))
