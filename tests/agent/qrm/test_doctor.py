"""The doctor's lines about qrm.mode nri without a running manager: the socket, the settings of containerd and CRI-O,
and whether a refusal works. (With a manager: tests/real/nri/test_doctor.py.)"""

import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.doctor import Reported, doctor

CONTAINERD = '[plugins."io.containerd.nri.v1.nri"]'
VALIDATOR = '[plugins."io.containerd.nri.v1.nri".default_validator]'
TOLERATION = "tolerate-missing-nri-plugins.noderesource.dev"


@dataclass
class Place:
    """A node with files, and the socket of a runtime that listens."""

    root: Path
    port: int

    @property
    def socket(self) -> Path:
        return self.root / "nri.sock"

    @property
    def config(self) -> Path:
        """The settings file of the runtime."""
        return self.root / "config.toml"

    def reported(self, **settings: object) -> Reported:
        given = {
            "mode": "nri",
            "port": self.port,
            "nri_socket": self.socket,
            "runtime_config": self.config,
            **settings,
        }
        flags = [text for name, value in given.items() for text in ("--set", f"qrm.{name}={value}")]
        return doctor("--only", "qrm", *flags)

    def refusal(self, *lines: str) -> Reported:
        """The doctor's line with qrm.on_failure = "refuse" and these settings of the runtime."""
        self.config.write_text("\n".join(lines))
        return self.reported(on_failure="refuse")


@pytest.fixture
def place() -> Iterator[Place]:
    """The path of a unix socket has at most 107 bytes."""
    with (
        tempfile.TemporaryDirectory(prefix="nri-") as name,
        socket.socket() as taken,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        taken.bind(("127.0.0.1", 0))  # without a process that answers
        made = Place(Path(name), taken.getsockname()[1])
        listener.bind(str(made.socket))
        listener.listen()
        made.config.write_text("version = 3\n")
        yield made


def test_it_is_skipped_without_the_mode(place: Place):
    doctor("--only", "qrm").one("qrm", "skipped", "no [qrm] table")
    place.reported(mode="cri").one("qrm", "skipped", "the mode is cri")


def test_rights_are_not_checked_without_an_api_and_in_the_mode_server(place: Place):
    place.reported(mode="cri").one("qrm", "skipped", "rights are not checked: no Kubernetes API is configured")
    assert "rights" not in str(place.reported(mode="server"))


def test_a_runtime_that_listens_passes(place: Place):
    found = place.reported()
    assert found.exit_code == 0, found
    found.one("qrm", "skipped", f"no QoS Resource Manager responds at http://127.0.0.1:{place.port}")
    found.one("qrm", "ok", f"the container runtime listens at {place.socket}")
    found.one("qrm", "ok", f"{place.config} does not turn NRI off")
    assert not found.of("qrm", "warn", "fail")


def test_a_missing_or_dead_socket_fails(place: Place):
    missing, file, closed = (place.root / name for name in ("missing.sock", "file", "closed.sock"))
    file.touch()
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(closed))
    place.reported(nri_socket=missing).one("qrm", "fail", f"no NRI socket at {missing}", "deploy/components/qrm-nri")
    place.reported(nri_socket=file).one("qrm", "fail", "is not a socket")
    place.reported(nri_socket=closed).one("qrm", "fail", f"does not listen at {closed}: Connection refused")


def test_a_kubelet_that_sets_cpusets_itself_fails(place: Place):
    (place.root / "cpu_manager_state").write_text('{"policyName": "static"}')
    words = ("the manager cannot start", "cpu_manager_state contains the policy static", "cpuManagerPolicy: none")
    place.reported(kubelet_dir=place.root).one("qrm", "fail", *words)
    assert not place.reported(kubelet_dir=place.root, force="true").of("qrm", "fail")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            [CONTAINERD, "disable = true"],
            ("NRI is off", f"set disable = false in {CONTAINERD} of"),
        ),
        (['disabled_plugins = ["io.containerd.nri.v1.nri"]'], ("NRI is off",)),
        ([CONTAINERD, "disable_connections = true"], ("does not allow plug-ins", "set disable_connections = false")),
        (["[crio.nri]", "enable_nri = false"], ("NRI is off", "set enable_nri = true in [crio.nri] of")),
        (["[crio.nri]", "nri_disable_connections = true"], ("set nri_disable_connections = false", "restart CRI-O")),
    ],
)
def test_a_runtime_whose_settings_disable_nri_fails(place: Place, lines: list[str], words: tuple[str, ...]):
    place.config.write_text("\n".join(lines))
    place.reported().one("qrm", "fail", *words)


def test_another_socket_in_the_settings_of_the_runtime_is_a_warning(place: Place):
    place.config.write_text(f'{CONTAINERD}\nsocket_path = "/run/other/nri.sock"\n')
    place.reported().one("qrm", "warn", "/run/other/nri.sock", 'set qrm.nri_socket = "/run/other/nri.sock"')
    place.config.write_text(f'{CONTAINERD}\nsocket_path = "{place.socket}"\ndisable = false\n')
    place.reported().one("qrm", "ok", "turns NRI on")


def test_imported_and_drop_in_settings_take_precedence(place: Place):
    """containerd: `imports`, relative ones and patterns too; CRI-O: the files of the directory of the same name."""
    (place.root / "more").mkdir()
    place.config.write_text(f'imports = ["more/*.toml"]\n{CONTAINERD}\ndisable = false\n')
    (place.root / "more/nri.toml").write_text(f'imports = ["../config.toml"]\n{CONTAINERD}\ndisable = true\n')
    place.reported().one("qrm", "fail", "NRI is off")
    crio = place.root / "crio.conf"
    (place.root / "crio.conf.d").mkdir()
    (place.root / "crio.conf.d/10-crio.conf").write_text("[crio.nri]\nenable_nri = false\n")
    place.reported(runtime_config=crio).one("qrm", "fail", "NRI is off")
    (place.root / "crio.conf.d/20-nri.conf").write_text("[crio.nri]\nenable_nri = true\n")
    place.reported(runtime_config=crio).one("qrm", "ok", "turns NRI on")


@pytest.mark.parametrize(("text", "why"), [(None, "No such file or directory"), ("a = ", "not valid TOML")])
def test_settings_that_cannot_be_read_are_unknown(place: Place, text: str | None, why: str):
    """They are not mounted in the pod of the manager: the result is unknown, not a failure."""
    place.config.unlink() if text is None else place.config.write_text(text)
    found = place.reported()
    assert found.exit_code == 0, found
    found.one("qrm", "skipped", "the settings of the container runtime are not checked", str(place.config), why)
    found = place.reported(on_failure="refuse")
    found.one("qrm", "warn", "unknown whether a refusal works", "run the doctor on the node, as root")


def test_refusing_containers_needs_the_validator(place: Place):
    found = place.refusal("version = 3")
    assert found.exit_code == 1
    found.one(
        "qrm",
        "fail",
        "a refusal does not work: the default validator is off",
        'default_validator = { enable = true, required_plugins = ["load-watcher"], '
        f'tolerate_missing_plugins_annotation = "{TOLERATION}" }} in {CONTAINERD} of {place.config}',
        "annotation",
    )
    crio = place.refusal("[crio.nri]", "enable_nri = true")
    crio.one(
        "qrm",
        "fail",
        'default_validator = { nri_enable_default_validator = true, nri_validator_required_plugins = ["load-watcher"]',
        "in [crio.nri] of",
    )


def test_the_settings_in_the_remedy_fix_the_problem(place: Place):
    """A user pastes the setting of the remedy into the file."""
    for table, name in ((CONTAINERD, "containerd"), ("[crio.nri]", "CRI-O")):
        fix = place.refusal(table).one("qrm", "fail", "a refusal does not work").cure
        setting = fix.removeprefix("set ").partition(f" in {table}")[0]
        found = place.refusal(table, setting)
        assert found.exit_code == 0
        found.one("qrm", "ok", f"a refusal works: {name} requires the plug-in load-watcher")
        assert not found.of("qrm", "warn")


def test_a_validator_that_requires_another_plugin_is_a_warning(place: Place):
    found = place.refusal(VALIDATOR, "enable = true", 'required_plugins = ["other"]')
    words = ("works only for pods with the annotation required-plugins.noderesource.dev", '["other", "load-watcher"]')
    found.one("qrm", "warn", *words)


def test_the_pod_of_the_manager_must_be_tolerated(place: Place):
    found = place.refusal(VALIDATOR, "enable = true", 'required_plugins = ["load-watcher"]')
    found.one("qrm", "ok", "a refusal works")
    found.one("qrm", "warn", "the pod of the manager cannot start", TOLERATION)
