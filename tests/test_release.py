"""The files of `make release`, and the files in .github, which only GitHub runs: they are validated with its
schemas."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from click.testing import CliRunner

from tests.real.parts import find_helm
from tests.waiting import wait_for
from watcher import __version__

REPOSITORY = Path(__file__).resolve().parents[1]
GITHUB = REPOSITORY / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").iterdir())
WHEEL, SDIST = f"load_watcher-{__version__}-py3-none-any.whl", f"load_watcher-{__version__}.tar.gz"
CHART, SBOM = f"load-watcher-{__version__}.tgz", f"load-watcher-{__version__}.cdx.json"
COMMIT = "0123456789ab"


# --- the files of a release ------------------------------------------------------------------------------------------


def build(output: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script of `make release`."""
    command = [sys.executable, str(REPOSITORY / "scripts" / "release"), "--output", str(output), *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=200)


def build_without_docker(output: Path, bin_directory: Path) -> str:
    """Build a release on a machine without docker; return what the script prints."""
    bin_directory.mkdir()
    for name in ("git", "make", "sh"):
        if (program := shutil.which(name)) is not None:
            (bin_directory / name).symlink_to(program)
    stamps = {"SOURCE_DATE_EPOCH": "1700000000", "LOAD_WATCHER_COMMIT": COMMIT}
    done = build(output, PATH=str(bin_directory), **stamps)
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory of a release, and what the script printed."""
    find_helm()
    directory = tmp_path_factory.mktemp("release")
    printed = build_without_docker(directory / "dist", directory / "bin")
    return directory / "dist", printed


@pytest.mark.slow
def test_a_release_has_all_files_with_their_checksums(release: tuple[Path, str]) -> None:
    dist, printed = release
    lines = (dist / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert {WHEEL, SDIST, CHART, SBOM, "release-notes.md"} == sums.keys()
    assert {path.name for path in dist.iterdir()} == sums.keys() | {"SHA256SUMS"}
    assert {name: sha256((dist / name).read_bytes()).hexdigest() for name in sums} == sums
    assert "no image was built, because this machine has no docker buildx builder" in printed
    assert "hadolint found no problem in the Dockerfile" in printed


@pytest.mark.slow
def test_the_same_commit_gives_the_same_files(release: tuple[Path, str], tmp_path: Path) -> None:
    """The checksums are those of a second build, in other directories."""
    build_without_docker(tmp_path / "dist", tmp_path / "bin")
    assert (release[0] / "SHA256SUMS").read_text() == (tmp_path / "dist" / "SHA256SUMS").read_text()
    with tarfile.open(release[0] / CHART) as chart:
        assert {1_700_000_000} == {member.mtime for member in chart.getmembers()}


@pytest.mark.slow
def test_the_notes_are_the_section_of_the_changelog(release: tuple[Path, str]) -> None:
    notes = (release[0] / "release-notes.md").read_text()
    assert notes.startswith(f"## [{__version__}]")
    assert 1 == len(re.findall(r"^## ", notes, re.MULTILINE))
    assert notes in (REPOSITORY / "CHANGELOG.md").read_text()


@pytest.mark.slow
def test_helm_accepts_the_packed_chart(release: tuple[Path, str], tmp_path: Path) -> None:
    """With the contents of files that are symbolic links in the repository."""
    home = {**os.environ, "HELM_CACHE_HOME": str(tmp_path), "HELM_CONFIG_HOME": str(tmp_path)}
    for command in (["lint"], ["show", "chart"]):
        done = subprocess.run([find_helm(), *command, release[0] / CHART], env=home, capture_output=True, text=True)
        assert 0 == done.returncode, done.stdout + done.stderr
    assert __version__ == yaml.safe_load(done.stdout)["version"]
    with tarfile.open(release[0] / CHART) as chart:
        assert all(member.isfile() for member in chart.getmembers())
        assert "load-watcher/alerts.yaml" in chart.getnames()


@pytest.mark.slow
def test_the_bill_of_materials_has_the_packages_of_the_image(release: tuple[Path, str]) -> None:
    document = json.loads((release[0] / SBOM).read_text())
    root = document["metadata"]["component"]
    assert ("CycloneDX", "load-watcher", __version__) == (document["bomFormat"], root["name"], root["version"])
    found = {each["name"].lower().replace("_", "-"): each for each in document["components"]}
    lock = (REPOSITORY / "deploy" / "image" / "requirements.lock").read_text()
    everywhere = dict(re.findall(r"^([\w.-]+)==([^ ;\\]+) +\\$", lock, re.MULTILINE))  # without a condition
    assert len(everywhere) > 20
    assert everywhere.items() <= {name: each["version"] for name, each in found.items()}.items()
    assert {"pip", "setuptools"}.isdisjoint(found)
    assert found["psycopg"]["licenses"]
    assert any(each["ref"] == root["bom-ref"] and len(each["dependsOn"]) > 10 for each in document["dependencies"])


# --- installation ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(release: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a virtual environment in which only the wheel of the release was installed."""
    place = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(place)
    constraints = ["--constraint", str(REPOSITORY / "constraints.txt"), "--disable-pip-version-check", "--quiet"]
    python = str(place / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", python, "install", *constraints, str(release[0] / WHEEL)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert 0 == done.returncode, done.stdout + done.stderr
    return place / "bin" / "load-watcher"


@pytest.mark.slow
def test_the_installed_wheel_prints_its_version_and_commit(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run([installed, "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert f"load-watcher {__version__} (commit {COMMIT})\n" == done.stdout


@pytest.mark.slow
def test_the_installed_wheel_serves_windows(installed: Path, tmp_path: Path) -> None:
    """With a database and the dashboard, outside the checkout."""
    command = [str(installed), "serve", "--provider", "host", "--port", "0"]
    log = tmp_path / "log"
    with log.open("w") as output, subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output) as process:
        try:
            (url, *_) = wait_for(lambda: re.findall(r"http://127\.0\.0\.1:\d+", log.read_text()), what="the address")
            wait_for(lambda: requests.get(f"{url}/watcher", timeout=10).ok, what="a sample of this host")
            assert requests.get(f"{url}/readyz", timeout=10).json()["detail"]["store"]["ok"], log.read_text()
            assert "migrated" in log.read_text()
            assert "<title>" in requests.get(f"{url}/", timeout=10).text
        finally:
            process.terminate()
    assert 0 == process.returncode, log.read_text()


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(release: tuple[Path, str], tmp_path: Path) -> None:
    """Without the repository and without git: with its migrations, its license files and the commit."""
    with tarfile.open(release[0] / SDIST) as sdist:
        sdist.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir"]
    command = [sys.executable, "-m", "pip", "wheel", *flags, str(tmp_path / "wheels"), str(source)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert 0 == done.returncode, done.stdout + done.stderr
    assert files_of(release[0] / WHEEL) == files_of(tmp_path / "wheels" / WHEEL)


def files_of(wheel: Path) -> dict[str, bytes]:
    """Return the contents of a wheel by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


# --- a tag -----------------------------------------------------------------------------------------------------------


def test_a_tag_that_is_not_ready_names_all_missing_parts(tmp_path: Path) -> None:
    """Nothing is built: the directory of an earlier release is kept."""
    (tmp_path / "kept").touch()
    done = build(tmp_path, "--tag", "v9.9.9")
    assert (1, "") == (done.returncode, done.stdout)
    assert f"the tag must be v{__version__}: __version__ in watcher/__init__.py is {__version__}" in done.stderr
    assert [tmp_path / "kept"] == list(tmp_path.iterdir())


# --- .github ---------------------------------------------------------------------------------------------------------


def schemas() -> Iterator[Any]:
    """Each file in .github with a schema, and the name of the schema."""
    for path in WORKFLOWS:
        yield pytest.param(path, "vendor.github-workflows", id=path.name)
    for path in sorted((GITHUB / "ISSUE_TEMPLATE").iterdir()):
        schema = "vendor.github-issue-config" if path.name == "config.yml" else "vendor.github-issue-forms"
        yield pytest.param(path, schema, id=path.name)
    yield pytest.param(GITHUB / "dependabot.yml", "vendor.dependabot", id="dependabot.yml")


@pytest.mark.parametrize(("path", "schema"), [*schemas()])
def test_the_file_is_valid_for_github(path: Path, schema: str) -> None:
    import check_jsonschema  # type: ignore[import-untyped]  # takes a second

    done = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", schema, str(path)])
    assert 0 == done.exit_code, done.output


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each job of each workflow, with the name of both."""
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            yield f"{path.name}: {name}", job


def test_each_job_names_its_permissions() -> None:
    """A workflow grants nothing, so that a new job has no rights; only jobs that publish can write."""
    assert all(yaml.safe_load(path.read_text())["permissions"] == {} for path in WORKFLOWS)
    writing = {}
    for name, job in jobs():
        assert job["permissions"], name
        assert set(job["permissions"].values()) <= {"read", "write"}, name
        if rights := {right for right, level in job["permissions"].items() if level == "write"}:
            writing[name.partition(": ")[2]] = rights
    assert {
        "provenance": {"attestations", "id-token"},
        "pypi": {"id-token"},
        "images": {"attestations", "id-token", "packages"},
        "chart": {"attestations", "id-token", "packages"},
        "github": {"contents"},
    } == writing


def test_publications_that_cannot_be_withdrawn_come_last() -> None:
    """PyPI never accepts a version twice, so the images and the chart must exist before."""
    release = yaml.safe_load((GITHUB / "workflows" / "release.yml").read_text())["jobs"]
    assert {"provenance", "images", "chart"} == set(release["pypi"]["needs"])
    assert release.keys() - {"checks", "files", "github"} == set(release["github"]["needs"])


def test_each_action_is_pinned_to_a_commit() -> None:
    """A tag or a branch can be moved to other code, which then has the rights of the job. The comment has the tag,
    which Dependabot updates with the commit; an action has one commit in all jobs."""
    pins: dict[str, tuple[str | None, ...]] = {}
    for path in WORKFLOWS:
        for line in re.findall(r"uses: (.*)", path.read_text()):
            if line.startswith("./"):
                continue
            found = re.fullmatch(r"([\w-]+/[\w/-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", line)
            assert found, f"{path.name}: {line}"
            assert pins.setdefault(found[1], found.group(2, 3)) == found.group(2, 3), line
    assert pins


def test_a_checkout_leaves_no_credentials() -> None:
    for name, job in jobs():
        for step in job.get("steps", ()):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, name


def test_the_commands_of_the_workflows_exist() -> None:
    """They do not run here: each target of make and each script exists in the repository, and bash can parse them."""
    text = ""
    for name, job in jobs():
        for step in job.get("steps", ()):
            if "run" in step:
                assert "${{" not in step["run"], f"{name}: an expression in a command can inject code; use env"
                parsed = subprocess.run(["bash", "-n"], input=step["run"], capture_output=True, text=True)
                assert (0, "") == (parsed.returncode, parsed.stderr), name
                text += step["run"] + "\n"
    targets = set(re.findall(r"^\s*make ([a-z-]+)", text, re.MULTILINE))
    assert {"release", "image", "image-agent", "image-digests"} <= targets
    makefile = (REPOSITORY / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    assert "bash .ci/run" in text
