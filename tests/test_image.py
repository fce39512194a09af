"""The container image: locked packages, a base with a digest, and the health check."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from socketserver import StreamRequestHandler
from threading import Thread

import grimp
import pytest
import trustme
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from load_watcher import healthcheck

REPOSITORY = Path(__file__).resolve().parents[1]
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
LOCKS = REPOSITORY / "deploy" / "image"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
IMAGE_EXTRAS = ("influxdb", "postgres", "qrm")
DIGEST = f"sha256:{'0123456789abcdef' * 4}"


# --- the locks -------------------------------------------------------------------------------------------------------


def locked(name: str) -> dict[str, tuple[Version, list[str]]]:
    """Version and hashes of each package in a lock."""
    found: dict[str, tuple[Version, list[str]]] = {}
    text = (LOCKS / name).read_text().replace("\\\n", " ")
    for line in (each for each in text.splitlines() if each.strip() and not each.lstrip().startswith("#")):
        requirement, _, hashes = line.partition("--hash=")
        (pin,) = (parsed := Requirement(requirement.strip())).specifier
        assert pin.operator == "==", line
        found[canonicalize_name(parsed.name)] = Version(pin.version), hashes.replace("--hash=", "").split()
    return found


def requirements_of_the_image() -> list[Requirement]:
    """What pyproject.toml requires of an installation with the extras of the image."""
    extras = (each for name in IMAGE_EXTRAS for each in PROJECT["project"]["optional-dependencies"][name])
    return [Requirement(each) for each in (*PROJECT["project"]["dependencies"], *extras)]


@pytest.mark.parametrize("name", ["requirements.lock", "build.lock"])
def test_each_locked_package_has_hashes_and_a_version_that_passed_the_tests(name: str) -> None:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    limits: dict[str, SpecifierSet] = {
        canonicalize_name(each.name): each.specifier for each in map(Requirement, filter(_is_one, lines))
    }
    found = locked(name)
    assert found
    for package, (version, hashes) in found.items():
        assert hashes, package
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), package
        # trove-classifiers and others that only the build needs may be missing from the constraints
        assert package not in limits or version in limits[package], f"{package} {version}: run make lock"


def _is_one(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#")


def test_the_lock_satisfies_the_requirements_of_the_project() -> None:
    found = locked("requirements.lock")
    for each in requirements_of_the_image():
        assert canonicalize_name(each.name) in found, f"{each}: run make lock"
        assert found[canonicalize_name(each.name)][0] in each.specifier, f"{each}: run make lock"
    build = locked("build.lock")
    for each in map(Requirement, PROJECT["build-system"]["requires"]):
        assert build[canonicalize_name(each.name)][0] in each.specifier, f"{each}: run make lock"


def test_the_image_installs_from_the_locks_only() -> None:
    """Each installation has hashes, or no index and no dependencies."""
    steps = [each for each in DOCKERFILE.replace("\\\n", " ").splitlines() if each.startswith("RUN")]
    commands = [part for each in steps for part in each.split("&&") if "pip" in part and " venv " not in part]
    assert 6 == len(commands)
    for command in commands:
        assert "--require-hashes" in command or "--no-deps" in command, command
        assert "--no-build-isolation" in command or " wheel " not in command, command
    extras = re.search(r"^lock:.*?\n\n", (REPOSITORY / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert extras is not None
    assert list(IMAGE_EXTRAS) == re.findall(r"--extra (\w+)", extras[0])


def test_the_image_has_no_tools_for_building_or_installing_packages() -> None:
    """They are in the first stage only: the virtual environment that is copied has the packages of one lock."""
    assert locked("requirements.lock").keys().isdisjoint({"hatchling", "pip", "setuptools", "wheel"})
    text = DOCKERFILE.replace("\\\n", " ")
    assert "RUN python -m venv --without-pip /opt/load-watcher" in text
    installed = [line for line in text.splitlines() if "--python /opt/load-watcher" in line]
    assert [False, False] == ["build.lock" in line for line in installed]
    *_, agent, service = text.split("\nFROM ${PYTHON_IMAGE}")
    for stage in (agent, service):
        assert "RUN" not in [line.partition(" ")[0] for line in stage.splitlines()]


def test_pages_name_the_license_of_each_package_with_conditions() -> None:
    page = " ".join((REPOSITORY / "docs" / "tasks" / "deploy.md").read_text().split())
    assert {"psycopg", "psycopg-binary", "certifi"} <= locked("requirements.lock").keys()
    assert "psycopg and psycopg-binary (LGPL-3.0-only" in page
    assert "certifi (MPL-2.0)" in page


@pytest.mark.parametrize("target", ["image", "image-agent"])
def test_an_image_has_the_labels_of_its_version_and_commit(target: str) -> None:
    """And the commit as build argument, which the wheel in the image prints."""
    given = [f"BASE=python:3.13-slim@{DIGEST}", "COMMIT=0123456789ab", "SOURCE=https://example.com/x"]
    names = ["IMAGE=x:1.2", "AGENT_IMAGE=y:1.2"]
    command = ["make", "--dry-run", target, *given, *names]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=30)
    (build,) = (line for line in done.stdout.splitlines() if line.startswith("docker buildx build"))
    labels = dict(re.findall(r'--label org\.opencontainers\.image\.(\w+)="([^"]*)"', build))
    assert {"version": "1.2", "revision": "0123456789ab", "source": "https://example.com/x"} == labels
    assert '--build-arg COMMIT="0123456789ab"' in build
    *_, agent, service = DOCKERFILE.split("\nFROM ${PYTHON_IMAGE}")
    for stage in (agent, service):
        assert {"title", "description", "licenses", "vendor"} == set(re.findall(r"image\.(\w+)=", stage))


def test_hadolint_finds_no_problem_in_the_dockerfile() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    if not hadolint.exists():
        pytest.skip(f"{hadolint} is missing: run make dev")
    done = subprocess.run([hadolint, REPOSITORY / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert (0, "") == (done.returncode, done.stdout)


@pytest.mark.slow
def test_the_build_context_makes_the_wheel_with_the_given_commit(tmp_path: Path) -> None:
    """.dockerignore leaves out .git; the wheel is built as in the Dockerfile, with the names that it admits."""
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    context = tmp_path / "context"
    for source in (path for line in lines if line.startswith("!") for path in REPOSITORY.glob(line[1:])):
        target = context / source.relative_to(REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(tmp_path / "wheels")]
    command = [sys.executable, "-m", "pip", "wheel", *flags, str(context)]
    environment = {**os.environ, "LOAD_WATCHER_COMMIT": "0123456789ab"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert 0 == done.returncode, done.stdout + done.stderr
    (wheel,) = (tmp_path / "wheels").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        assert b"0123456789ab\n" == archive.read("load_watcher/_commit")
        assert {"LICENSE", "NOTICE"} <= {Path(name).name for name in archive.namelist()}


# --- the base --------------------------------------------------------------------------------------------------------


def make(directory: Path, target: str, base: str, docker: str) -> subprocess.CompletedProcess[str]:
    """Run a target of the Makefile with this base image and a program `docker`."""
    shutil.copy(REPOSITORY / "Makefile", directory)
    (directory / "Dockerfile").write_text(f"ARG PYTHON_IMAGE={base}\nFROM ${{PYTHON_IMAGE}}\n")
    program = directory / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{docker}\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["make", target, "IMAGE=x:1"], cwd=directory, env=environment, capture_output=True, text=True, timeout=30
    )


def test_all_stages_have_the_same_base() -> None:
    assert ["${PYTHON_IMAGE} AS build", "build AS agent-build", "${PYTHON_IMAGE} AS agent", "${PYTHON_IMAGE}"] == (
        re.findall(r"^FROM (.+)$", DOCKERFILE, re.MULTILINE)
    )
    (base,) = re.findall(r"^ARG PYTHON_IMAGE=(.+)$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"python:3\.13-slim(@sha256:[0-9a-f]{64})?", base)


@pytest.mark.parametrize("base", ["python:3.13-slim", "python:3.13-slim@sha256:12"])
def test_an_image_for_release_needs_a_base_with_a_digest(tmp_path: Path, base: str) -> None:
    done = make(tmp_path, "image", base, "echo built; exit 0")
    assert done.returncode != 0
    assert f"{base}, has no digest: run make image-digests" in done.stderr
    assert "built" not in done.stdout


def test_with_a_digest_the_image_is_built(tmp_path: Path) -> None:
    done = make(tmp_path, "image", f"python:3.13-slim@{DIGEST}", 'echo "built: $@"')
    assert (0, "") == (done.returncode, done.stderr)
    assert "built: buildx build --tag x:1" in done.stdout


@pytest.mark.parametrize("base", ["python:3.13-slim", f"python:3.13-slim@sha256:{'0' * 64}"])
def test_the_digest_of_the_registry_is_written_into_the_dockerfile(tmp_path: Path, base: str) -> None:
    program = f'test "$4" = python:3.13-slim && echo {DIGEST}'
    assert 0 == make(tmp_path, "image-digests", base, program).returncode
    assert (tmp_path / "Dockerfile").read_text().startswith(f"ARG PYTHON_IMAGE=python:3.13-slim@{DIGEST}\n")


@pytest.mark.parametrize("answer", ["exit 1", "echo 'toomanyrequests: pull rate limit'"])
def test_a_response_without_a_digest_changes_nothing(tmp_path: Path, answer: str) -> None:
    assert 0 != make(tmp_path, "image-digests", "python:3.13-slim", answer).returncode
    assert (tmp_path / "Dockerfile").read_text().startswith("ARG PYTHON_IMAGE=python:3.13-slim\n")


# --- the health check ------------------------------------------------------------------------------------------------


class _Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    """A server on the loopback address that is healthy."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Healthy) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def check(directory: Path, settings: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the health check with the settings file of a container, and with a proxy that must not be used."""
    (directory / "load-watcher.toml").write_text(f'[provider]\nname = "host"\n{settings}')
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    command = [sys.executable, "-m", "load_watcher.healthcheck", *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("tls", [False, True])
def test_the_health_check_uses_the_scheme_and_port_of_the_settings(
    server: ThreadingHTTPServer, tmp_path: Path, tls: bool
) -> None:
    """The certificate names another host than the loopback address."""
    settings = f'[server]\nhost = "0.0.0.0"\nport = {server.server_port}\n'
    if tls:
        issued = trustme.CA().issue_cert("load-watcher.example.com")
        issued.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
        issued.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.crt"))
        settings += f'tls_cert = "{tmp_path}/tls.crt"\ntls_key = "{tmp_path}/tls.key"\n'
        _serve_tls(server, issued)
    done = check(tmp_path, settings)
    assert (0, "") == (done.returncode, done.stderr)


def _serve_tls(server: ThreadingHTTPServer, issued: trustme.LeafCert) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued.configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)


@pytest.mark.slow
def test_the_health_check_fails_without_a_service_and_with_wrong_settings(tmp_path: Path) -> None:
    done = check(tmp_path, "[server]\nport = 1\n")
    assert (1, True) == (done.returncode, "refused" in done.stderr)
    done = check(tmp_path, '[server]\nport = "x"\n')
    assert (1, True) == (done.returncode, "server.port" in done.stderr)


def test_the_health_check_fails_on_a_response_that_is_not_http(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    server.RequestHandlerClass = _OtherProtocol
    done = check(tmp_path, f"[server]\nport = {server.server_port}\n")
    assert (1, True) == (done.returncode, done.stderr.startswith("the response is not valid HTTP: BadStatusLine"))


class _OtherProtocol(StreamRequestHandler):
    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"not HTTP\r\n")


EXTENDER = """
[extender]
watcher = "http://127.0.0.1:1"
[scheduler.default]
plugins = [ { name = "TargetLoadPacking" } ]
"""


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("serve --port {port}", "[server]\nport = 1\n"),
        ("demo --nodes 9 --port {port}", ""),
        ("agent --port {port} --enforce", ""),
        ("agent", "[agent]\nport = {port}\n"),
        ("qrm --host 127.0.0.1", "[qrm]\nport = {port}\n"),
        ("qrm --set qrm.port={port}", ""),
        ("extender --port {port}", EXTENDER),
        ("extender --watcher http://127.0.0.1:9", EXTENDER + "[server]\nport = {port}\n"),
    ],
)
def test_the_health_check_requests_the_server_of_the_command(
    server: ThreadingHTTPServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    settings: str,
) -> None:
    """At the address of its options and of its table."""
    monkeypatch.chdir(tmp_path)
    port = str(server.server_port)
    arguments = command.replace("{port}", port).split()
    settings_file = tmp_path / "load-watcher.toml"
    settings_file.write_text(f'[provider]\nname = "host"\n{settings.replace("{port}", port)}')
    assert (0, "") == (healthcheck.main(arguments), capsys.readouterr().err)
    server.RequestHandlerClass = _OtherProtocol
    assert 1 == healthcheck.main(arguments)


def test_a_command_without_a_server_is_healthy_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    """Docker defines no other exit code than 0 and 1."""
    assert 0 == check(tmp_path, "", "simulate", "--generate").returncode
    done = check(tmp_path, "", "agent", "--prt", "1")
    assert (1, True) == (done.returncode, "No such option" in done.stderr)
    done = check(tmp_path, '[qrm]\nport = "x"\n', "qrm")
    assert (1, True) == (done.returncode, "qrm.port" in done.stderr)


@pytest.mark.slow
def test_the_health_check_reads_the_command_of_the_first_process(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    """In a separate process namespace, as in a container: the first process has the name of the program."""
    program = tmp_path / "load-watcher"
    program.write_text(f"#!/bin/sh\n{sys.executable} -m load_watcher.healthcheck\nexit $?\n")
    program.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    isolated = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*isolated, "true"], capture_output=True).returncode:
        pytest.skip("this process must not create namespaces: run as root")
    command = [*isolated, str(program), "agent", "--port", str(server.server_port)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30)
    assert (0, "") == (done.returncode, done.stderr)
    command[-1] = "1"
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30)
    assert (1, True) == (done.returncode, "refused" in done.stderr)


# --- the agent's image -----------------------------------------------------------------------------------------------

EXCLUDED = (LOCKS / "agent.excludes").read_text().split()
CODE = ("agent", "lab", "load_watcher", "scorers", "watcher")


def imports_of_the_agent() -> set[str]:
    """Every module that the agent and the reader of its settings file import, directly or not, at the start or later.
    The file has all sections, and each is declared in its own package."""
    graph = grimp.build_graph(*CODE, include_external_packages=True, cache_dir=None)
    found = {name for name in graph.modules if f"{name}.".startswith(("agent.", "watcher.service.settings."))}
    qrm = {name for name in found if f"{name}.".startswith("agent.qrm.")}
    found -= qrm
    left = list(found)
    while left:
        new = graph.find_modules_directly_imported_by(left.pop()) - found - qrm
        found |= new
        left += new
    return found


def test_the_image_of_the_agent_has_exactly_the_code_that_the_agent_imports() -> None:
    """Of load_watcher it has the command line, of which each command imports its packages when it runs."""
    needed = imports_of_the_agent()
    parts = {Path(*Path(each).parts[:2]) for each in needed_files(needed)}
    kept = {Path("load_watcher/cli"), Path("load_watcher/commands")}
    present = {
        path.relative_to(REPOSITORY) for code in CODE for path in (REPOSITORY / code).iterdir() if is_package(path)
    }
    gone = {Path(each) for each in EXCLUDED if each not in ("lab", "scorers", "watcher/_migrations")}
    assert gone == {each for each in present - parts - kept if each.parts[0] not in ("lab", "scorers")}
    assert not [each for each in needed if each.startswith(("scorers.", "lab.", "load_watcher."))]


def needed_files(modules: set[str]) -> list[str]:
    return [each.replace(".", "/") for each in modules if each.split(".")[0] in CODE]


def is_package(path: Path) -> bool:
    return (path.is_dir() and (path / "__init__.py").exists()) or path.name == "web"


def test_the_lock_of_the_agent_is_a_part_of_the_other() -> None:
    """The same versions, from the same limits as in pyproject.toml, and every package that the agent imports."""
    whole, own = locked("requirements.lock"), locked("agent.lock")
    assert own.items() <= whole.items()
    required = {canonicalize_name(each.name): each for each in map(Requirement, PROJECT["project"]["dependencies"])}
    wanted = [Requirement(line) for line in (LOCKS / "agent.in").read_text().splitlines() if _is_one(line)]
    assert all(each == required[canonicalize_name(each.name)] for each in wanted)
    assert {canonicalize_name(each.name) for each in wanted} == {
        "aiohttp",
        "click",
        "msgspec",
        "prometheus-client",
        "pyyaml",
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the agent's image has in site-packages."""
    directory = tmp_path_factory.mktemp("site")
    older = ["typing-extensions"] if sys.version_info < (3, 13) else []  # the locks are for the image's Python 3.13
    for name in (*locked("agent.lock"), *older):
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:  # for another platform or version of Python
            continue
        for file in files:
            source = Path(str(file.locate()))
            if ".." not in file.parts and source.is_file():
                (directory / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, directory / file)
    for code in CODE:
        shutil.copytree(REPOSITORY / code, directory / code, ignore=shutil.ignore_patterns("__pycache__"))
    for each in EXCLUDED:
        shutil.rmtree(directory / each, ignore_errors=each == "watcher/_migrations")
    return directory


MAIN = "import sys; from load_watcher.main import main; main(sys.argv[1:])"
IMPORT_ALL = """
import importlib, pkgutil, agent, load_watcher
for package in (agent, load_watcher):
    for each in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not each.name.endswith("__main__"):
            importlib.import_module(each.name)
"""


def run_in(site: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the packages of the directory only."""
    command = [sys.executable, "-S", "-P", "-c", program, *arguments]
    environment = {"PYTHONPATH": str(site), "PATH": os.environ["PATH"]}
    return subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_the_agent_runs_in_its_image(site: Path) -> None:
    """Each of its modules can be imported, and it reads policies; another command names the missing package."""
    assert run_in(site, MAIN, "agent", "--help").returncode == 0
    everything = run_in(site, IMPORT_ALL)
    assert everything.returncode == 0, everything.stderr
    checked = run_in(site, MAIN, "agent", "--check", str(REPOSITORY / "deploy" / "agent" / "policies"))
    assert (checked.returncode, "no problems found" in checked.stdout) == (0, True), checked.stderr
    served = run_in(site, MAIN, "serve")
    assert served.returncode == 2
    assert re.search(r"does not contain (watcher\.|scorers)", served.stderr), served.stderr
