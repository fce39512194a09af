"""The settings of [qrm] and their problems."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent.qrm.plugins.nic import Nic, NicAddress
from agent.qrm.settings import QrmSettings, read_settings, validate
from load_watcher.main import main


def read(**given: Any) -> QrmSettings:
    settings, problems = read_settings(given, cwd=Path("/etc"))
    assert not problems
    return settings


def test_by_default_nothing_is_changed_and_only_loopback_is_served():
    settings = read()
    assert (settings.mode, settings.host, settings.port, settings.reconcile_period) == (
        "dry-run",
        "127.0.0.1",
        2022,
        3.0,
    )
    assert not settings.evict_inadmissible
    assert not settings.publish_capacity
    assert settings.roles().class_of("storage-service") == "exclusive"
    assert settings.roles().class_of("anybody") == "online"
    assert settings.roles().nic == {"numa-enhancement"}
    assert settings.plugins_dir == Path("load-watcher-qrm/plugins")


def test_an_empty_list_has_no_items():
    """`config show` writes the default of `names`, `skip_annotations` and `nics` as `[]`, which can be read again."""
    lists = ("names", "skip_annotations", "nics", "exclusive_roles", "offline_roles", "nic_roles")
    settings = read(**{name: [] for name in lists})
    assert [()] * len(lists) == [getattr(settings, name) for name in lists]
    assert settings.roles().class_of("storage-service") == "online"


def test_every_setting_is_read_from_text_of_the_environment():
    settings = read(
        mode="CRI",
        state_dir="qrm",
        reconcile_period="500ms",
        names="best-effort-cpu=cpu,a=b",
        reserved_cpus="0-1,40-41",
        reserved_memory="1GiB",
        offline_roles="batch,ETL",
        nics="eth0 numa=0,eth1 numa=1 ipv4=10.0.0.7 ipv6=fdbd::20 netns=/var/run/netns/ns1",
        step_down="0",
        usage_factor="1.5",
    )
    assert settings.mode == "cri"
    assert settings.plugins_dir == Path("/etc/qrm/plugins")
    assert settings.reconcile_period == 0.5
    assert settings.names == (("best-effort-cpu", "cpu"), ("a", "b"))
    assert settings.reserved_cpus == {0, 1, 40, 41}
    assert settings.reserved_memory == 1 << 30
    assert settings.roles().class_of("batch") == "offline"
    assert settings.nics == (
        Nic("eth0", 0),
        Nic("eth1", 1, NicAddress("10.0.0.7", "fdbd::20"), "/var/run/netns/ns1"),
    )
    assert (settings.step_down, settings.usage_factor) == (0, 1.5)
    assert "nics=[" in repr(settings)


@pytest.mark.parametrize(
    ("given", "key", "message"),
    [
        ({"mode": "kri"}, "qrm.mode", "dry-run"),
        ({"mode": "cgroup"}, "qrm.mode", '"cgroup" was removed in this version: use nri or cri'),
        ({"mode": "CGROUP"}, "qrm.mode", '"CGROUP" was removed in this version: use nri or cri'),
        *(
            ({name: value}, f"qrm.{name}", "was removed in this version")
            for name, value in (("cpu_policy", "katalyst"), ("cpu_policy", "roles"), ("reclaim", True))
        ),
        ({"system_namespaces": ["kube-system"]}, "qrm.system_namespaces", "was removed in this version"),
        ({"nri_index": "5"}, "qrm.nri_index", "two digits"),
        ({"nri_name": "a b"}, "qrm.nri_name", "a name of letters"),
        *(
            ({"mode": mode, "on_failure": "refuse"}, "qrm.on_failure", f'refuse has no effect with qrm.mode = "{mode}"')
            for mode in ("dry-run", "cri", "server")
        ),
        ({"mode": "nri", "nri_socket": ""}, "qrm.nri_socket", "must be the path of a file"),
        ({"mode": "nri", "on_failure": "refuses"}, "qrm.on_failure", 'must be "open" or "refuse"'),
        ({"polcy": "none"}, "qrm.polcy", "unknown setting"),
        ({"reserved_cpus": "0-"}, "qrm.reserved_cpus", "neither a number nor a range"),
        ({"names": ["cpu"]}, "qrm.names", "two names"),
        ({"names": ["a=cpu=b"]}, "qrm.names", "'a=cpu=b' contains more than one ="),
        ({"cgroup_nest": "a/b"}, "qrm.cgroup_nest", "must be the name of one group"),
        ({"names": ["a=cpu", "a=memory"]}, "qrm.names", "is mapped to two resources"),
        ({"nics": ["eth0 speed=10"]}, "qrm.nics", "'speed' is not an attribute of a network card"),
        ({"nics": ["eth0 ipv6=10.0.0.7"]}, "qrm.nics", "not an IPv6 address"),
        ({"nics": ["eth0 numa=left"]}, "qrm.nics", "not a NUMA node number"),
        ({"offline_roles": ["reranker"]}, "qrm.exclusive_roles", "is in the classes"),
        ({"headroom_resource": "best-effort-cpu"}, "qrm.headroom_resource", "must have a domain prefix"),
        ({"host": "0.0.0.0"}, "qrm.token_file", "0.0.0.0 is reachable from other hosts"),
        ({"watcher_token_file": "none"}, "qrm.watcher_token_file", "file /etc/none does not exist"),
        ({"usage_factor": float("nan")}, "qrm.usage_factor", "a number from 0 to 1000"),
        ({"reconcile_period": "0s"}, "qrm.reconcile_period", "a duration"),
    ],
)
def test_problems_name_the_key(given: dict[str, Any], key: str, message: str):
    _, problems = read_settings(given, cwd=Path("/etc"))
    assert [problem.key for problem in problems] == [key]
    assert message in problems[0].message
    assert problems[0].cure


def test_config_check_checks_the_section(tmp_path: Path):
    assert validate({"port": 2022}) == []
    file = tmp_path / "settings.toml"
    file.write_text('[qrm]\nmode = "now"\n')
    reported = CliRunner().invoke(main, ["config", "check", str(file)])
    assert reported.exit_code == 2
    assert "qrm.mode: must be" in reported.output


def noted(tmp_path: Path, *lines: str) -> list[str]:
    """The notes of `config check` for a valid [qrm]."""
    file = tmp_path / "settings.toml"
    file.write_text("\n".join(["[qrm]", *lines]))
    reported = CliRunner().invoke(main, ["config", "check", "-o", "json", str(file)])
    assert reported.exit_code == 0, reported.output
    found: list[str] = json.loads(reported.stdout)["notices"]
    return found


def test_settings_of_another_mode_are_noted(tmp_path: Path):
    others = ('nri_socket = "/run/nri.sock"', 'nri_name = "a"', 'nri_index = "10"', 'runtime_config = "/etc/c.toml"')
    for mode in ("dry-run", "cri", "server"):
        found = noted(tmp_path, f'mode = "{mode}"', *others)
        assert found == [
            f'qrm.{name} has no effect with qrm.mode = "{mode}": remove it, or set qrm.mode = "nri"'
            for name in ("nri_socket", "nri_name", "nri_index", "runtime_config")
        ]
    with listening(tmp_path) as path:
        lines = ('mode = "nri"', f'nri_socket = "{path}"')
        assert not noted(tmp_path, *lines, 'nri_name = "a"', 'on_failure = "open"', "evict_inadmissible = true")
        (note,) = noted(tmp_path, *lines, 'runtime_socket = "/run/containerd/containerd.sock"')
        assert note.startswith('qrm.runtime_socket has no effect with qrm.mode = "nri": remove it')
    (note,) = noted(tmp_path, "evict_inadmissible = true", "publish_capacity = false")
    assert note.endswith('remove it, or set qrm.mode = "nri" or "cri"')


def test_requirements_of_the_mode_nri_are_noted(tmp_path: Path):
    (note,) = noted(tmp_path, 'mode = "nri"', f'nri_socket = "{tmp_path}/none.sock"')
    assert f"this machine has no socket {tmp_path}/none.sock" in note
    assert 'for example qrm.nri_socket = "/var/run/nri/nri.sock"' in note
    with listening(tmp_path) as path:
        (note,) = noted(tmp_path, 'mode = "nri"', f'nri_socket = "{path}"', 'on_failure = "refuse"')
        assert note.startswith('qrm.on_failure = "refuse": while the manager does not run')
        assert "load-watcher doctor --only qrm" in note


@contextmanager
def listening(directory: Path) -> Iterator[Path]:
    """The path of a socket; it is bound by a shorter one, of 107 bytes at most."""
    path = directory / "nri.sock"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{(fd := os.open(directory, os.O_PATH))}/nri.sock")
        os.close(fd)
        yield path
    path.unlink()


def test_the_flag_of_the_proposal(tmp_path: Path):
    """--qos-resource-manager-reconcile-period: an invalid value is an error before anything starts."""
    reported = CliRunner().invoke(main, ["qrm", "--qos-resource-manager-reconcile-period", "often"])
    assert reported.exit_code == 2
    assert "qrm.reconcile_period: must be a duration" in reported.output


def test_the_flag_of_upstream(tmp_path: Path):
    """--qos-resource-manager-resource-names-map, in the format of the kubelet."""
    for names, problem in (("best-effort-cpu=cpu,a=b", "/none/devices"), ("cpu", "qrm.names: must be a list of pairs")):
        flags = ["--qos-resource-manager-resource-names-map", names, "--set", "qrm.sys=/none"]
        reported = CliRunner().invoke(main, ["qrm", *flags])
        assert reported.exit_code != 0
        assert problem in reported.output


@pytest.mark.slow
def test_without_the_extra_the_error_names_it(tmp_path: Path):
    without = (
        "import sys; sys.modules['grpc'] = None; from load_watcher.main import main; main(['qrm', '--mode', 'server'])"
    )
    reported = subprocess.run(
        [sys.executable, "-c", without], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert reported.returncode == 2
    assert (
        reported.stderr
        == "load-watcher qrm: the extra qrm is not installed\n  run pip install '.[qrm]' in a clone of load-watcher\n"
    )
