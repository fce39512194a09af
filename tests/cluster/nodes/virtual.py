"""A node in a virtual machine of QEMU without acceleration: systemd, control groups of version 2, its own kernel."""

from __future__ import annotations

import shlex
import subprocess
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from agent import cpuset
from agent.cpuset import CpuSet
from tests.cluster import images, programs
from tests.cluster.control_plane import ADDRESS, NAMESPACE, inside, ip
from tests.cluster.nodes import guest
from tests.cluster.nodes.guest import HOME, PORT
from tests.cluster.nodes.node import MEMORY, UNLIMITED, Component, Node
from tests.waiting import wait_for

CPUS = 4
BOOT_S = 300.0
COMMAND_S = 120.0
ANSWER_S = 10.0
NETWORK = """\
set -e
hostname {name}
interface=$(ls /sys/class/net | grep -v lo)
ip link set $interface up
ip addr replace {address}/24 dev $interface
ip route replace default via {gateway}
echo 1 > /proc/sys/net/ipv4/ip_forward
"""


class VirtualNode(Node):
    """A node in a virtual machine, which ends with its process of QEMU."""

    driver = "systemd"

    def __init__(self, name: str, number: int, directory: Path, pki: Path, images: Path):
        super().__init__(name, number, directory, pki, images)
        self._tap = f"tap{number}"
        self._machine: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        disk = guest.make()
        self._pack(self.directory / "files.tar")
        images.unpacked(self.images, self.directory / "containerd.img")
        ip("-n", NAMESPACE, "tuntap", "add", self._tap, "mode", "tap")
        ip("-n", NAMESPACE, "link", "set", self._tap, "master", "br0", "up")
        self.route()
        drives = [
            f"file={disk.disk},snapshot=on,cache=unsafe",
            f"file={self.directory / 'files.tar'},readonly=on",
            f"file={self.directory / 'containerd.img'},cache=unsafe",
        ]
        command = [
            *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(CPUS)),
            *("-m", str(MEMORY >> 20), "-nodefaults", "-display", "none"),
            *("-serial", f"file:{self.directory / 'console.log'}"),
            *("-kernel", str(disk.kernel), "-initrd", str(disk.ramdisk)),
            *("-append", "root=/dev/vda rw console=ttyS0 quiet mitigations=off panic=1"),
            *(word for drive in drives for word in ("-drive", f"{drive},if=virtio,format=raw")),
            *("-netdev", f"tap,id=network,ifname={self._tap},script=no,downscript=no"),
            *("-device", "virtio-net-pci,netdev=network,romfile=", "-device", "virtio-rng-pci"),
        ]
        with (self.directory / "qemu.log").open("wb") as log:
            self._machine = subprocess.Popen(inside(NAMESPACE, *command), stdout=log, stderr=log)
        wait_for(self._answers, what=f"{self.name} to boot", timeout=BOOT_S)

    def stop(self) -> None:
        if self._machine is not None:
            self._machine.kill()
            self._machine.wait()
            self._machine = None

    def reboot(self) -> None:
        before = self._boot()
        # `systemctl reboot` needs a system bus, which the guest does not have. The answer may be lost in the reboot.
        self._shell("systemctl start --no-block reboot.target", check=False)
        wait_for(lambda: self._answers() and self._boot() != before, what=f"{self.name} to boot again", timeout=BOOT_S)

    def restart(self, component: Component) -> None:
        self.run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", component)

    def configure_kubelet(self, changed: Mapping[str, Any]) -> None:
        configuration = shlex.quote(self.kubelet_configuration(changed, HOME / "pki"))
        self._shell(
            "systemctl stop kubelet; rm -f /var/lib/kubelet/*_manager_state\n"
            f"printf %s {configuration} > {HOME}/kubelet.json; systemctl start kubelet"
        )

    def run(self, *command: str, check: bool = True) -> str:
        return self._shell(shlex.join(command), check=check)

    def quota(self, container: str) -> int:
        value, period = self._shell(f"cat {_group(container)}/cpu.max").split()
        return UNLIMITED if value == "max" else int(value) * 100_000 // int(period)

    def cpus(self, container: str) -> CpuSet:
        found = self._shell(
            f"read process < {_group(container)}/cgroup.procs && grep Cpus_allowed_list: /proc/$process/status",
            check=False,
        )
        _, named, listed = found.partition("Cpus_allowed_list:")
        return cpuset.parse(listed.strip()) if named else cpuset.EMPTY

    def cpu_seconds(self) -> float:
        lines = (line.split() for line in self._shell("cat /sys/fs/cgroup/cpu.stat").splitlines())
        return int(dict(lines)["usage_usec"]) / 1e6

    def of_pod(self, container: str, name: str) -> str:
        """Return a file of the control group of a container's pod."""
        return self._shell(f"cat {_group(container)}/../{name}").strip()

    def _boot(self) -> str:
        return self._shell("cat /proc/sys/kernel/random/boot_id", check=False, timeout=ANSWER_S)

    def _answers(self) -> bool:
        assert self._machine is not None
        assert self._machine.poll() is None, (self.directory / "qemu.log").read_text()
        return self._boot() != ""

    def _shell(self, script: str, *, check: bool = True, timeout: float = COMMAND_S) -> str:
        """Return what a script prints. The last line is its exit status, without which the machine did not answer."""
        given = f"{{\n{script}\n}} </dev/null\necho; echo $?; exit\n"
        command = inside(NAMESPACE, str(programs.find("busybox")), "nc", self.address, str(PORT))
        try:
            done = subprocess.run(command, input=given, text=True, capture_output=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            assert not check, f"{self.name} did not answer within {timeout:g} s: {script}"
            return ""
        printed, _, status = done.stdout.rstrip("\n").rpartition("\n")
        assert not check or status == "0", f"on {self.name}, {script}: {done.stdout}{done.stderr}"
        return printed.removesuffix("\n")

    def _pack(self, target: Path) -> None:
        """Write the archive with the files of the node."""
        own = {
            "network.sh": NETWORK.format(name=self.name, address=self.address, gateway=ADDRESS),
            "kubelet.json": self.kubelet_configuration({}, HOME / "pki"),
            "kubelet.env": f"ARGUMENTS=--node-ip {self.address} --hostname-override {self.name}\n",
            "kubelet.conf": (self.pki / f"{self.name}.conf").read_text().replace(str(self.pki), f"{HOME}/pki"),
            "containerd.toml": self.containerd_configuration(restrict_oom_score=False),
        }
        texts = {
            **{str(HOME / name): text for name, text in own.items()},
            "/etc/hostname": f"{self.name}\n",
            "/etc/cni/net.d/10-cluster.conflist": self.network_configuration(),
        }
        containers = ("containerd", "containerd-shim-runc-v2", "ctr", "crictl")
        paths = {
            f"{HOME}/bin/kubelet": programs.kubelet("kubelet"),
            **{f"{HOME}/bin/{name}": programs.containers(name) for name in containers},
            **{f"{HOME}/pki/{name}": self.pki / name for name in ("ca.crt", f"{self.name}.crt", f"{self.name}.key")},
        }
        with tarfile.open(target, "w") as out:
            for name, path in paths.items():
                out.add(path, name)
            for name, text in texts.items():
                entry = tarfile.TarInfo(name.lstrip("/"))
                entry.size = len(text.encode())
                out.addfile(entry, BytesIO(text.encode()))


def _group(container: str) -> str:
    """Return a shell expression for the control group of a container."""
    return f"$(find /sys/fs/cgroup/kubepods.slice -type d -name '*{container}.scope')"
