"""The cache of programs, what scripts/go-programs says where it cannot build, and the page that names the versions."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.modules.programs import (
    UnknownModuleError,
    containers,
    helm,
    kube_state_metrics,
    kubernetes,
    metrics_server,
    nri_runtime,
    original,
    prometheus,
    scheduler_plugins,
)
from tests.real.control_plane import compatibility
from tests.real.parts import REPOSITORY
from tests.signals import sigterm_after
from tests.waiting import wait_for

GO_PROGRAMS = REPOSITORY / "scripts" / "go-programs"


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache."""
    monkeypatch.setenv("LOAD_WATCHER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LOAD_WATCHER_KUBERNETES", raising=False)
    return tmp_path / "cache"


def run(*arguments: str, path: Path | str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the script with a PATH and without a package index."""
    inherited = {name: value for name, value in os.environ.items() if name != "LOAD_WATCHER_REQUIRE_REAL"}
    return subprocess.run(
        [sys.executable, GO_PROGRAMS, *arguments],
        env={**inherited, "PATH": str(path), "PIP_NO_INDEX": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def put_go(directory: Path, script: str) -> Path:
    """Put a program named go into a directory; return the directory."""
    directory.mkdir()
    program = directory / "go"
    program.write_text(f'#!/bin/sh\nif [ "$1" = env ]; then echo go1.26.8; exit; fi\n{script}\n')
    program.chmod(0o755)
    return directory


def test_a_version_is_found_by_minor_and_by_patch(own_cache: Path) -> None:
    module = kubernetes("1.36.3")
    assert own_cache / "kubernetes" / "v1.36.3" == module.directory
    assert module == kubernetes("1.36") == kubernetes() == kubernetes("v1.36")
    assert {"kube-apiserver", "kube-scheduler", "kubectl", "etcd"} == set(module.missing)
    module.directory.mkdir(parents=True)
    (module.directory / "etcd").touch()
    assert "etcd" not in module.missing
    plugins = scheduler_plugins()
    assert (own_cache / "scheduler-plugins" / "v0.34.7", "1.34.4") == (plugins.directory, plugins.version)
    assert own_cache / "helm" / f"v{helm().version}" == helm().directory
    assert own_cache / "containers" / "v2.4.2-v1.4.3" == containers().directory
    assert own_cache / "metrics-server" / "v0.9.0" == metrics_server().directory
    assert own_cache / "kube-state-metrics" / "v2.18.0" == kube_state_metrics().directory
    assert (own_cache / "prometheus" / "v0.316.0", "3.16.0") == (prometheus().directory, prometheus().version)
    assert (own_cache / "nri-runtime", "0.12.5") == (nri_runtime().directory.parent, nri_runtime().version)


def test_the_variable_selects_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOAD_WATCHER_KUBERNETES", "1.34")
    assert "1.34.4" == kubernetes().version


@pytest.mark.parametrize("version", ["1.20", "1.36.1", "1.3", "x"])
def test_an_unknown_version_is_an_error(version: str) -> None:
    with pytest.raises(UnknownModuleError, match=r"tests/modules has 1\.34\.4, 1\.35\.4, 1\.36\.3"):
        kubernetes(version)


def test_the_program_of_an_original_depends_on_its_files(tmp_path: Path) -> None:
    (tmp_path / "peer").mkdir()
    for name in ("go.mod", "go.sum", "main.go"):
        (tmp_path / "peer" / name).write_text(name)
    first = original("peer", tmp_path)
    assert ["peer"] == first.missing
    (tmp_path / "peer" / "README").touch()
    assert first == original("peer", tmp_path)
    (tmp_path / "peer" / "main.go").write_text("changed")
    assert first.directory != original("peer", tmp_path).directory
    with pytest.raises(UnknownModuleError, match="unknown original 'other': tests/originals has peer"):
        original("other", tmp_path)


@pytest.mark.slow
def test_without_go_and_package_index_the_remedy_is_named(tmp_path: Path) -> None:
    done = run("kubernetes", path=tmp_path)
    assert 1 == done.returncode
    assert "Install Go 1.26 or newer (https://go.dev/dl/) and put it on PATH." in done.stderr
    assert "no Go 1.26 or newer on PATH" in done.stdout


@pytest.mark.slow
def test_an_optional_build_fails_only_where_real_parts_are_required(tmp_path: Path) -> None:
    done = run("--optional", "kubernetes", path=tmp_path)
    assert 0 == done.returncode
    assert "Tests that need these programs will be skipped." in done.stderr
    assert 1 == run("--optional", "kubernetes", path=tmp_path, LOAD_WATCHER_REQUIRE_REAL="1").returncode


def test_an_unreachable_module_proxy_is_named(tmp_path: Path) -> None:
    failing = put_go(tmp_path / "bin", 'echo "dial tcp: lookup proxy.golang.org: no such host"; exit 1')
    done = run("kubernetes", "1.35", path=failing)
    assert 1 == done.returncode
    assert "building Kubernetes 1.35.4 failed:\ndial tcp: lookup proxy.golang.org: no such host" in done.stderr
    assert "The Go module proxy cannot be reached, or does not have a module" in done.stderr


@pytest.mark.slow
def test_programs_appear_only_after_a_complete_build(tmp_path: Path, own_cache: Path) -> None:
    """The directory of the build is removed; a second run has nothing to do."""
    arguments = 'while [ "$1" != -o ]; do shift; done; for name in kube-apiserver kube-scheduler kubectl server; do'
    built = put_go(tmp_path / "bin", f'{arguments} echo "$name" > "$2$name"; done')
    failing = put_go(tmp_path / "failing", f'{arguments} echo "$name" > "$2$name"; done; exit 1')
    assert 1 == run("kubernetes", path=f"{failing}:{os.defpath}").returncode
    assert not any((own_cache / "kubernetes").iterdir())
    done = run("kubernetes", path=f"{built}:{os.defpath}")
    assert 0 == done.returncode, done.stderr
    assert [own_cache / "kubernetes" / "v1.36.3"] == list((own_cache / "kubernetes").iterdir())
    assert [] == kubernetes().missing
    assert "server\n" == (kubernetes().directory / "etcd").read_text()
    assert "" == run("kubernetes", path=tmp_path).stdout


def has_ended(pid: int) -> bool:
    """Whether a process runs no longer. The init of a container may be slow to reap it, or never do so."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
def test_sigterm_ends_the_build(tmp_path: Path, own_cache: Path) -> None:
    """Go ends too, and nothing is left in the cache."""
    waiting = put_go(tmp_path / "bin", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    environment = {**os.environ, "PATH": f"{waiting}:{os.defpath}"}
    process = subprocess.Popen([sys.executable, GO_PROGRAMS, "kubernetes"], env=environment, stdout=subprocess.DEVNULL)
    pid = int(wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), what="Go to start"))
    process.terminate()
    assert 143 == process.wait(60)
    wait_for(lambda: has_ended(pid), what="the end of Go")
    assert not any((own_cache / "kubernetes").iterdir())


def test_a_sigterm_while_a_process_starts_is_handled_when_it_has_started() -> None:
    """Otherwise nothing would end that process: the handler of go-programs raises SystemExit."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        with sigterm_after():
            signal.raise_signal(signal.SIGTERM)
            started.append(subprocess.Popen(["true"]))

    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with pytest.raises(SystemExit):
            start()
        (process,) = started
        assert 0 == process.wait(60)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_an_unknown_real_part_is_named_with_the_known_ones() -> None:
    command = [sys.executable, str(REPOSITORY / "scripts" / "real-parts"), "Prometheus", "node-exporter"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("unknown part node-exporter; known: Prometheus, node exporter, ")


# --- docs/reference/compatibility.md ----------------------------------------------------------------------------------


def test_the_page_names_the_versions_and_functions_of_the_tests() -> None:
    page = compatibility.PAGE.read_text()
    written = page.partition(compatibility.BEGIN)[2].partition(compatibility.END)[0]
    header, _, *rows = written.strip().splitlines()
    assert ["function", *compatibility.result_files()] == [cell.strip() for cell in header.strip("|").split("|")]
    assert rows
    assert {row.split("|")[1].strip() for row in rows} <= set(compatibility.FUNCTIONS)
    for version in (*compatibility.result_files(), f"v{scheduler_plugins().directory.name[1:]}"):
        assert version in page.partition("## Functions")[0]


def test_each_module_of_tests_belongs_to_a_function() -> None:
    """Otherwise the page would not have its results: add the module to FUNCTIONS."""
    assert [] == compatibility.unlisted()


def test_a_function_is_supported_if_all_its_tests_passed(tmp_path: Path) -> None:
    path = tmp_path / "results.xml"
    path.write_text(
        '<testsuites><testsuite><testcase classname="tests.real.test_a" name="x"/>'
        '<testcase classname="tests.real.test_a" name="y"><failure/></testcase>'
        '<testcase classname="tests.real.test_b" name="z"><skipped/></testcase>'
        '<testcase classname="tests.real.control_plane.test_resize" name="z"/></testsuite></testsuites>'
    )
    results = compatibility.read_results(path)
    assert {"test_a": False, "test_resize": True} == results
    found = compatibility.table({"1.36.3": results, "1.35.4": {}, "1.34.4": {"test_resize": False}})
    assert re.fullmatch(r"\| function .*\n\|---.*\n\| in-place .* \| yes \| not tested \| \*\*no\*\* \|", found)
