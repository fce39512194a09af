"""The images of a cluster without a registry: OCI archives that `ctr images import` reads.

A file system of Debian with the Python of the Dockerfile stands for its base image. The steps of the Dockerfile run in
it with chroot. Debian and the packages of the locks are layers that are made once and stay in the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from tests.cluster.programs import containers, find
from tests.modules.programs import cache_root
from tests.real.parts import REPOSITORY
from tests.waiting import wait_for

SUITE = "trixie"
"""The release of Debian with Python 3.13, the Python of the Dockerfile."""
PACKAGES = ("python3", "python3-venv", "python3-pip", "ca-certificates")
LOCKS = ("requirements", "build", "agent")
REGISTRY = "cluster.test"
BUSYBOX = f"{REGISTRY}/busybox:1"
SERVICE = f"{REGISTRY}/load-watcher:1"
AGENT = f"{REGISTRY}/load-watcher-agent:1"
NOT_FOR_IMPORTS = [
    "io.containerd.grpc.v1.cri",
    "io.containerd.cri.v1.images",
    "io.containerd.cri.v1.runtime",
    "io.containerd.nri.v1.nri",
]
"""Plug-ins of containerd that use directories of this machine."""
PIP = "python3 -m pip --disable-pip-version-check --no-cache-dir"
HASHED = "--quiet --require-hashes --only-binary :all: -r /source/deploy/image"
VENVS = f"""\
set -e
python3 -m venv --without-pip /opt/load-watcher
python3 -m venv --without-pip /opt/agent
{PIP} --python /opt/load-watcher install {HASHED}/requirements.lock
{PIP} --python /opt/agent install {HASHED}/agent.lock
python3 -m venv /opt/build
/opt/build/bin/{PIP} install {HASHED}/build.lock
"""
WHEEL = f"""\
set -e
cd /source
/opt/build/bin/{PIP} wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheel .
for each in load-watcher agent; do
    {PIP} --python /opt/$each install --quiet --no-deps --no-index /wheel/*.whl
done
cd /opt/agent/lib/python3.*/site-packages
xargs rm -r < /source/deploy/image/agent.excludes
mkdir -p /data
chown 65532:65532 /data
"""


def make(directory: Path) -> None:
    """Write busybox.tar, and load-watcher.tar with both images of this checkout, into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    _busybox(directory / "busybox.tar")
    home = cache_root() / "cluster"
    home.mkdir(parents=True, exist_ok=True)
    lower = _lower(home)
    with tempfile.TemporaryDirectory(dir=directory) as place:
        own = Path(place, "own")
        _layer_of_steps(lower, own, WHEEL)
        layers = [_tar(each) for each in (*lower, own)]
        configs = {SERVICE: _dockerfile_config(-1), AGENT: _dockerfile_config(-2)}
        archive(directory / "load-watcher.tar", configs, layers)


def unpacked(directory: Path, target: Path) -> None:
    """Write a disk for /var/lib/containerd with the images of a directory, because a virtual machine needs minutes to
    import them."""
    with tempfile.TemporaryDirectory(dir=directory.parent) as place:
        root, state, socket = Path(place, "root"), Path(place, "state"), Path(place, "socket")
        settings = Path(place, "containerd.toml")
        settings.write_text(
            f'version = 3\nroot = "{root}"\nstate = "{state}"\ndisabled_plugins = {json.dumps(NOT_FOR_IMPORTS)}\n'
            f'[grpc]\naddress = "{socket}"\n[ttrpc]\naddress = "{socket}.ttrpc"\n'
        )
        with (directory.parent / "import.log").open("wb") as log:
            command = [str(containers("containerd")), "--config", str(settings)]
            daemon = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            client = [str(containers("ctr")), "--address", str(socket), "--namespace", "k8s.io"]
            wait_for(
                lambda: subprocess.run([*client, "version"], capture_output=True, check=False).returncode == 0,
                what="containerd to import images",
            )
            for image in sorted(directory.glob("*.tar")):
                subprocess.run([*client, "images", "import", str(image)], check=True, stdout=subprocess.DEVNULL)
        finally:
            daemon.terminate()
            daemon.wait()
        mke2fs(root, target, 4)


def mke2fs(root: Path, target: Path, gigabytes: int) -> None:
    """Write a disk with the files of a directory."""
    command = [str(find("mke2fs")), "-q", "-t", "ext4", "-d", str(root), str(target), f"{gigabytes}G"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def archive(target: Path, configs: Mapping[str, Mapping[str, Any]], layers: Sequence[Path]) -> None:
    """Write images of the same layers as a tar file with an OCI image layout.

    `configs` maps the name of an image to the part of its configuration that a runtime reads.
    """
    with tarfile.open(target, "w") as out:
        described = [_layer(out, layer) for layer in layers]
        entries = [_manifest(out, name, config, described) for name, config in configs.items()]
        _add(out, "index.json", json.dumps({"schemaVersion": 2, "manifests": entries}).encode())
        _add(out, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')


def _manifest(
    out: tarfile.TarFile, name: str, config: Mapping[str, Any], layers: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Write the configuration and the manifest of an image; return its entry in the index."""
    spec = {
        "architecture": "amd64",
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [each["digest"] for each in layers]},
    }
    kind = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": {"mediaType": f"{kind}.config.v1+json", **_blob(out, spec)},
        "layers": list(layers),
    }
    annotations = {"io.containerd.image.name": name}
    return {"mediaType": manifest["mediaType"], **_blob(out, manifest), "annotations": annotations}


def _busybox(target: Path) -> None:
    """Write an image with busybox alone, also the sandbox image: its default command waits."""
    program = find("busybox")
    assert program is not None
    with tempfile.TemporaryDirectory() as place:
        layer = Path(place, "layer.tar")
        with tarfile.open(layer, "w") as out:
            out.add(program, "bin/busybox")
            names = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
            for name in names:
                if name != "busybox":
                    link = tarfile.TarInfo(f"bin/{name}")
                    link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                    out.addfile(link)
        archive(target, {BUSYBOX: {"Cmd": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]}}, [layer])


def _lower(home: Path) -> list[Path]:
    """Return the layers below the project's own, the lowest first: directories, each with a .tar beside it; made once.

    The first is Debian with Python, the second has the packages of the locks.
    """
    debian = home / SUITE
    if not _tar(debian).exists():
        shutil.rmtree(debian, ignore_errors=True)
        debootstrap(debian, PACKAGES)
        _pack(debian, ("var/cache/apt", "var/lib/apt", "usr/share/doc"))
    digest = hashlib.sha256(VENVS.encode())
    for lock in LOCKS:
        digest.update((REPOSITORY / "deploy" / "image" / f"{lock}.lock").read_bytes())
    locked = home / digest.hexdigest()[:16]
    if not _tar(locked).exists():
        shutil.rmtree(locked, ignore_errors=True)
        _layer_of_steps([debian], locked, VENVS)
    return [debian, locked]


def debootstrap(directory: Path, packages: Sequence[str]) -> None:
    """Install Debian with packages into a directory."""
    command = [str(find("debootstrap")), "--variant=minbase", f"--include={','.join(packages)}", SUITE, str(directory)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _layer_of_steps(lower: Sequence[Path], upper: Path, script: str) -> None:
    """Run a script in a file system of layers, and write what it changes into a directory and a .tar beside it."""
    with tempfile.TemporaryDirectory(dir=upper.parent) as place:
        work, merged = Path(place, "work"), Path(place, "merged")
        for each in (upper, work, merged):
            each.mkdir()
        options = f"lowerdir={':'.join(map(str, reversed(lower)))},upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged], check=True)
        try:
            with _chroot(merged):
                _run_in(merged, script)
        finally:
            subprocess.run(["umount", merged], check=True)
    _pack(upper, ("source", "wheel", "opt/build", "proc", "root", "tmp", "etc"))


def _pack(directory: Path, excluded: Sequence[str]) -> None:
    """Write a directory as .tar beside it, which marks the directory as complete."""
    part = directory.with_name(f".{directory.name}.tar")
    left_out = [f"--exclude=./{each}" for each in excluded]
    subprocess.run(["tar", "--numeric-owner", *left_out, "-C", directory, "-cf", part, "."], check=True)
    part.replace(_tar(directory))


def _tar(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.tar")


@contextlib.contextmanager
def _chroot(root: Path) -> Iterator[None]:
    """Give a file system the sources of the image, a /proc, and what pip needs to reach the package index."""
    source = root / "source"
    source.mkdir(exist_ok=True)
    _copy_context(source)
    for name in ("etc/resolv.conf", "etc/hosts"):
        if Path("/", name).exists():
            shutil.copy(Path("/", name), root / name)
    bundle = os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt"
    if Path(bundle).exists():
        shutil.copy(bundle, root / "etc" / "ssl" / "certs" / "ca-certificates.crt")
    try:
        with proc_of(root):
            yield
    finally:
        shutil.rmtree(source, ignore_errors=True)


@contextlib.contextmanager
def proc_of(root: Path) -> Iterator[None]:
    """Mount /proc of a file system for the time of a block."""
    subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", root / "proc"], check=True)


def _copy_context(target: Path) -> None:
    """Copy what .dockerignore admits."""
    for line in (REPOSITORY / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            for found in sorted(REPOSITORY.glob(line[1:])):
                to = target / found.relative_to(REPOSITORY)
                to.parent.mkdir(parents=True, exist_ok=True)
                if found.is_dir():
                    shutil.copytree(found, to, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
                else:
                    shutil.copy(found, to)


def _run_in(root: Path, script: str) -> None:
    kept = {
        name: value
        for name, value in os.environ.items()
        if re.fullmatch(r"(?i)PIP_((EXTRA_)?INDEX_URL|DEFAULT_TIMEOUT)|\w+_proxy", name)
    }
    bundle = {"PIP_CERT": "/etc/ssl/certs/ca-certificates.crt"}
    environment = {**kept, **bundle, "HOME": "/root", "PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [str(find("chroot")), root, "sh", "-c", script], env=environment, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, f"a step of the image failed:\n{done.stdout}{done.stderr}"


def _dockerfile_config(stage: int) -> dict[str, Any]:
    """Return the configuration of one of the stages of the Dockerfile, counted as in a list."""
    text = (REPOSITORY / "Dockerfile").read_text().replace("\\\n", "")
    lines = re.split(r"(?m)^FROM .*$", text)[stage].splitlines()
    named = {word: rest.strip() for word, _, rest in (line.partition(" ") for line in lines) if word.isupper()}
    return {
        "User": named["USER"],
        "WorkingDir": named["WORKDIR"],
        "Env": re.findall(r"\w+=\S+", named["ENV"]),
        "Entrypoint": json.loads(named["ENTRYPOINT"]),
        "Cmd": json.loads(named["CMD"]),
    }


def _layer(out: tarfile.TarFile, path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    out.add(path, f"blobs/sha256/{digest}")
    kind = "application/vnd.oci.image.layer.v1.tar"
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": path.stat().st_size}


def _blob(out: tarfile.TarFile, document: Mapping[str, Any]) -> dict[str, Any]:
    data = json.dumps(document).encode()
    digest = hashlib.sha256(data).hexdigest()
    _add(out, f"blobs/sha256/{digest}", data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def _add(out: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    out.addfile(entry, BytesIO(data))
