"""The disk of virtual nodes: Debian with systemd, its cloud kernel, and units that wait for the files of a node.

The disk is made once and stays in the cache. A node brings its files as an archive, which is its second drive, and
/var/lib/containerd with its images as the third.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.images import SUITE, debootstrap, mke2fs, proc_of
from tests.cluster.programs import find
from tests.modules.programs import cache_root

PACKAGES = (
    *("linux-image-cloud-amd64", "systemd-sysv", "udev", "kmod", "mount", "procps"),
    *("busybox-static", "iproute2", "iptables", "conntrack", "runc", "containernetworking-plugins"),
)
HOME = Path("/opt/cluster")
"""Directory of a node's own files, in the virtual machine."""
PORT = 2000
"""A shell on this port runs commands: only the network namespace of the control plane reaches it."""
DISK_GB = 4
UNITS = {
    "cluster-files.service": f"""\
[Unit]
Description=Files of the node, from the second drive
ConditionPathExists=!{HOME}/kubelet.json
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/tar -xf /dev/vdb -C /
""",
    "cluster-network.service": f"""\
[Unit]
Description=Network of the node
Requires=cluster-files.service
After=cluster-files.service systemd-udev-settle.service
Wants=systemd-udev-settle.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh {HOME}/network.sh
""",
    "command.socket": f"""\
[Socket]
ListenStream={PORT}
Accept=yes
MaxConnections=64
TriggerLimitIntervalSec=0
[Install]
WantedBy=sockets.target
""",
    "command@.service": f"""\
[Unit]
CollectMode=inactive-or-failed
[Service]
Environment=PATH={HOME}/bin:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart=-/bin/sh
StandardInput=socket
StandardOutput=socket
StandardError=socket
""",
    "containerd.service": f"""\
[Unit]
After=cluster-network.service
Requires=cluster-network.service
[Service]
Environment=PATH={HOME}/bin:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart={HOME}/bin/containerd --config {HOME}/containerd.toml
Delegate=yes
KillMode=process
Restart=always
RestartSec=0.5
[Install]
WantedBy=multi-user.target
""",
    "kubelet.service": f"""\
[Unit]
After=containerd.service
[Service]
EnvironmentFile={HOME}/kubelet.env
Environment=PATH={HOME}/bin:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart={HOME}/bin/kubelet --config {HOME}/kubelet.json --kubeconfig {HOME}/kubelet.conf --v=2 $ARGUMENTS
KillMode=process
Restart=always
RestartSec=0.5
[Install]
WantedBy=multi-user.target
""",
}
MASKED = (
    *("getty@.service", "serial-getty@.service", "systemd-networkd.service", "systemd-timesyncd.service"),
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer"),
    *("systemd-update-utmp.service", "tmp.mount"),
)
STEPS = """\
set -e
printf 'MODULES=list\\nCOMPRESS=gzip\\n' > /etc/initramfs-tools/conf.d/cluster
printf 'virtio_pci\\nvirtio_blk\\next4\\n' >> /etc/initramfs-tools/modules
update-initramfs -u
systemctl enable command.socket containerd.service kubelet.service
"""
FSTAB = "/dev/vdc /var/lib/containerd ext4 defaults 0 0\n"
SYSTEM = "[Manager]\nDefaultTimeoutStopSec=10s\n"


@dataclass(frozen=True)
class Guest:
    """Paths of the disk, its kernel, and the initial RAM file system."""

    disk: Path
    kernel: Path
    ramdisk: Path


def make() -> Guest:
    """Return the disk of virtual nodes, which is made if the cache does not have it."""
    text = repr((SUITE, PACKAGES, UNITS, MASKED, STEPS, FSTAB, SYSTEM, DISK_GB))
    home = cache_root() / "cluster" / f"guest-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as place:
            _make(Path(place, "root"), made := Path(place, "made"))
            made.rename(home)
    return Guest(home / "disk.img", home / "vmlinuz", home / "initrd.img")


def _make(root: Path, made: Path) -> None:
    made.mkdir()
    debootstrap(root, PACKAGES)
    _write(root, {f"etc/systemd/system/{name}": text for name, text in UNITS.items()})
    _write(root, {"etc/fstab": FSTAB, "etc/systemd/system.conf.d/cluster.conf": SYSTEM})
    for name in MASKED:
        (root / "etc/systemd/system" / name).unlink(missing_ok=True)
        (root / "etc/systemd/system" / name).symlink_to("/dev/null")
    with proc_of(root):
        done = subprocess.run(
            [str(find("chroot")), root, "sh", "-c", STEPS],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
            text=True,
            capture_output=True,
            check=False,
        )
    assert done.returncode == 0, f"a step of the disk failed:\n{done.stdout}{done.stderr}"
    for name in ("vmlinuz", "initrd.img"):
        (found,) = (root / "boot").glob(f"{name}-*")
        shutil.copy(found, made / name)
    for name in ("boot", "var/cache/apt", "var/lib/apt", "usr/share/doc"):
        shutil.rmtree(root / name)
    mke2fs(root, made / "disk.img", DISK_GB)


def _write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
