"""The wheel, which is complete without the repository."""

import itertools
import re
import shutil
import subprocess
import tomllib
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import watcher

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("load_watcher", "lab", "watcher", "scorers", "agent")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a wheel built from this checkout, with their contents."""
    directory = tmp_path_factory.mktemp("wheel")
    (path,) = WheelBuilder(str(REPOSITORY)).build(directory=str(directory), versions=["standard"])
    with zipfile.ZipFile(path) as built:
        return {name: built.read(name).decode(errors="replace") for name in built.namelist()}


def metadata(wheel: dict[str, str], file: str) -> str:
    (found,) = (text for name, text in wheel.items() if name.endswith(f".dist-info/{file}"))
    return found


def test_the_wheel_has_the_version_of_the_package(wheel):
    assert f"\nVersion: {watcher.__version__}\n" in metadata(wheel, "METADATA")


def test_the_wheel_has_the_command(wheel):
    assert "load-watcher = load_watcher.main:main" in metadata(wheel, "entry_points.txt")


def test_the_wheel_has_only_the_five_packages(wheel):
    assert {name.partition("/")[0] for name in wheel if ".dist-info/" not in name} == {
        "agent",
        "lab",
        "load_watcher",
        "scorers",
        "watcher",
    }
    for package in ("load_watcher", "lab", "watcher", "scorers", "agent"):
        modules = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / package).rglob("*.py")}
        assert modules <= wheel.keys()


def test_the_wheel_has_each_migration(wheel):
    migrations = REPOSITORY / "migrations"
    wanted = {
        f"watcher/_migrations/{path.relative_to(migrations).as_posix()}"
        for path in migrations.rglob("*")
        if path.suffix in {".py", ".mako"}
    }
    assert wanted <= wheel.keys()
    assert not any("__pycache__" in name for name in wheel)


def test_the_changelog_begins_with_the_version_of_the_package():
    newest = re.search(r"^## \[(.+?)\]", (REPOSITORY / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest is not None
    assert newest[1] == watcher.__version__


def test_each_dependency_has_a_reason():
    text = (REPOSITORY / "pyproject.toml").read_text()
    block = text[text.index("dependencies = [") : text.index("]\n\n[project.optional-dependencies]")]
    lines = block.splitlines()[1:]
    dependencies = tomllib.loads(text)["project"]["dependencies"]
    assert sum(line.strip().startswith('"') for line in lines) == len(dependencies)
    for before, line in itertools.pairwise(lines):
        if line.strip().startswith('"'):
            assert before.strip().startswith("#"), f"{line.strip()} has no reason above it"


@pytest.mark.skipif(shutil.which("git") is None or not (REPOSITORY / ".git").exists(), reason="not a checkout of git's")
def test_no_large_file_was_committed():
    """Earlier, two wheels of 52 MB were."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout.decode()
    sizes = {name: path.stat().st_size for name in listed.split("\0") if (path := REPOSITORY / name).is_file()}
    assert not {name: size for name, size in sizes.items() if size > 1_000_000}


def test_third_party_files_of_the_dashboard_are_unchanged(wheel):
    """The table beside them has each with its checksum, and the wheel contains them."""
    web = REPOSITORY / "watcher" / "web"
    reported = dict(
        re.findall(r"^\| `(\S+)` \|.*\| `([0-9a-f]{64})` \|$", (web / "vendor/README.md").read_text(), re.MULTILINE)
    )
    files = {path.name: sha256(path.read_bytes()).hexdigest() for path in (web / "vendor").iterdir()}
    del files["README.md"]
    assert reported == files
    assert {f"watcher/web/{path.relative_to(web)}" for path in web.rglob("*") if path.is_file()} <= wheel.keys()


INSTALLS = re.compile(
    r"\b(?:pip3?|pipx|uv|poetry)\s+(?:pip\s+|tool\s+)?(?:install|run|add|download)\s"
    r"[^\n&;|`'\"]{0,40}?(?<![\w./-])['\"]?load-watcher\b(?![./-])"
    r"|\buvx\s+(?:--from\s+)?['\"]?load-watcher\b"
    r"|\b(?:docker|podman|nerdctl)\s+pull\s[^\n]{0,40}?load-watcher\b"
    r"|\bhelm\s+(?:install|upgrade|pull|repo add)\s[^\n]{0,60}?(?:oci://|https?://)"
)


def test_no_text_installs_a_package_that_is_not_published():
    """The owner of the name on PyPI, or of an image or a chart, could run code on the machines of users."""
    files = ("*.md", "*.py", "*.yaml", "*.yml", "*.txt", "*.tpl", "*.js", "*.html", "*.toml", "Dockerfile")
    folders = (REPOSITORY / each for each in (*PACKAGES, "docs", "deploy", "dashboards", "examples", ".github"))
    texts = [path for folder in folders for pattern in files for path in folder.rglob(pattern)]
    texts += [path for pattern in files for path in REPOSITORY.glob(pattern)]
    assert len(texts) > 500
    assert not [str(path) for path in texts if INSTALLS.search(path.read_text("utf-8"))]


@pytest.mark.parametrize(
    "line",
    [
        "pip install 'load-watcher[simulate]'",
        "pip install --upgrade load-watcher",
        "python -m pip install load-watcher==0.1.0",
        "pipx install load-watcher",
        "pipx run load-watcher demo",
        "uvx load-watcher demo",
        "uvx --from 'load-watcher[qrm]' load-watcher qrm",
        "uv tool install load-watcher",
        "uv pip install load-watcher",
        "docker pull ghcr.io/owner/load-watcher:0.1.0",
        "helm install load-watcher oci://ghcr.io/owner/charts/load-watcher",
    ],
)
def test_each_way_to_install_an_unpublished_package_is_found(line):
    assert INSTALLS.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "pip install '.[simulate]'",
        "pip install ./load-watcher",
        "pip install . && load-watcher serve",
        "pip install load-watcher.tar.gz",
        "helm install load-watcher deploy/helm/load-watcher --set image.repository=registry.example.com/load-watcher",
        "docker run registry.example.com/load-watcher:0.1.0",
    ],
)
def test_an_installation_from_the_sources_is_allowed(line):
    assert not INSTALLS.search(line)


STATUS = {
    "stable": (
        "learn/demo learn/own-source reference/api reference/dashboard reference/node-names reference/pods "
        "reference/review reference/store tasks/alerts tasks/doctor tasks/grafana tasks/influxdb tasks/metrics-server "
        "tasks/migrating tasks/operations tasks/prometheus tasks/record tasks/replay"
    ),
    "beta": "concepts/scheduling concepts/simulation learn/own-plugin tasks/shadow",
    "alpha": (
        "concepts/agent concepts/agent-safety learn/own-metric reference/agent-policies reference/agent-state "
        "tasks/agent-running"
    ),
    "experimental": "concepts/qrm learn/own-resource-plugin",
}


@pytest.mark.parametrize("status", STATUS)
def test_the_pages_of_a_part_state_its_status_in_their_third_line(status):
    """A merged page may be missing here; a page that exists states the status of the table in README.md."""
    pages = [path for name in STATUS[status].split() if (path := REPOSITORY / "docs" / f"{name}.md").exists()]
    assert pages
    assert not [str(path) for path in pages if not path.read_text().split("\n")[2].startswith(f"Status: {status}")]


def test_the_chart_states_the_status_of_each_part():
    """In its metadata, and above each part in its values; the same as in README.md."""
    readme = (REPOSITORY / "README.md").read_text()
    stated = {
        part: "".join(re.findall(rf"\| {row}[^|]*\| (\w+) \|", readme))
        for part, row in {
            "watcher": "watcher",
            "scheduler": "scheduling plug-ins",
            "agent": "node agent",
            "qrm": "QoS Resource Manager",
        }.items()
    }
    chart = REPOSITORY / "deploy" / "helm" / "load-watcher"
    listed = ", ".join(f"{part} {status}" for part, status in stated.items())
    assert f"load-watcher.io/status: {listed}\n" in (chart / "Chart.yaml").read_text()
    values = (chart / "values.yaml").read_text()
    assert all(f"\n# Status: {stated[part]}.\n{part}:\n" in values for part in ("scheduler", "agent", "qrm"))


def test_the_changelog_has_each_heading_once():
    """The entries of all branches are merged by union, which can duplicate a heading or an entry."""
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        headings = re.findall(r"^### (.+)", section, flags=re.MULTILINE)
        assert len(set(headings)) == len(headings), headings
        assert set(headings) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
        entries = re.split(r"^(?:- |### )", section, flags=re.MULTILINE)[1:]
        assert len(set(entries)) == len(entries), [each for each in entries if entries.count(each) > 1]
