"""The container image: locked packages, a base with a digest, and the health check."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler
from threading import Thread

import pytest
import trustme
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

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
    assert 4 == len(commands)
    for command in commands:
        assert "--require-hashes" in command or "--no-deps" in command, command
        assert "--no-build-isolation" in command or " wheel " not in command, command
    extras = re.search(r"^lock:.*?\n\n", (REPOSITORY / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert extras is not None
    assert list(IMAGE_EXTRAS) == re.findall(r"--extra (\w+)", extras[0])


def test_the_image_has_no_tools_that_build_or_install_packages() -> None:
    """They are in the first stage only: the virtual environment that is copied has the packages of one lock."""
    assert locked("requirements.lock").keys().isdisjoint({"hatchling", "pip", "setuptools", "wheel"})
    text = DOCKERFILE.replace("\\\n", " ")
    assert "RUN python -m venv --without-pip /opt/load-watcher" in text
    installed = [line for line in text.splitlines() if "--python /opt/load-watcher" in line]
    assert [False, False] == ["build.lock" in line for line in installed]
    _, final = text.split("AS build", 1)[1].split("FROM ", 1)
    assert "RUN" not in [line.partition(" ")[0] for line in final.splitlines()]


def test_pages_name_the_license_of_each_package_with_conditions() -> None:
    page = (REPOSITORY / "docs" / "deploy.md").read_text()
    assert {"psycopg", "psycopg-binary", "certifi"} <= locked("requirements.lock").keys()
    assert "psycopg and psycopg-binary (LGPL-3.0-only" in page
    assert "certifi (MPL-2.0)" in page


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


def test_both_stages_have_the_same_base() -> None:
    assert ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"] == re.findall(r"^FROM (.+)$", DOCKERFILE, re.MULTILINE)
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
def test_an_answer_without_a_digest_changes_nothing(tmp_path: Path, answer: str) -> None:
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


def check(directory: Path, settings: str) -> subprocess.CompletedProcess[str]:
    """Run the health check with the settings file of a container, and with a proxy that must not be used."""
    (directory / "load-watcher.toml").write_text(f'[provider]\nname = "host"\n{settings}')
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    command = [sys.executable, "-m", "load_watcher.healthcheck"]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("tls", [False, True])
def test_the_health_check_asks_with_the_scheme_and_port_of_the_settings(
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
