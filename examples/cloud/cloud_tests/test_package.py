"""The imports of the package from load-watcher, and the error of load-watcher without the package."""

import ast
import re
from pathlib import Path

import pytest

from tests.real.parts import REPOSITORY
from watcher.core.config.problems import SettingsError
from watcher.service.settings.loading import load
from watcher.sources.settings import ProviderSettings

PACKAGE = REPOSITORY / "examples" / "cloud" / "load_watcher_cloud"


def test_it_imports_only_documented_modules():
    """docs/learn/own-source.md lists the modules that a package may import."""
    allowed = set(
        re.findall(
            r"^\| `(watcher\S*)` \|", (REPOSITORY / "docs" / "learn" / "own-source.md").read_text(), re.MULTILINE
        )
    )
    imported = {
        node.module
        for path in sorted(PACKAGE.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("watcher")
    }
    assert imported
    assert imported <= allowed


@pytest.mark.parametrize("name", ["datadog", "Datadog"])
def test_without_the_package_the_error_names_it(name: str, tmp_path: Path):
    with pytest.raises(SettingsError) as refused:
        load(flags={}, environ={"METRICS_PROVIDER_NAME": name}, cwd=tmp_path)
    (problem,) = refused.value.problems
    assert problem.message.startswith(
        f"the provider {name.casefold()} (environment METRICS_PROVIDER_NAME) is in a package"
    )
    assert "pip install ./examples/cloud" in problem.cure


def test_with_the_package_it_is_known(reachable: Path, tmp_path: Path):
    environ = {"METRICS_PROVIDER_NAME": "Datadog", "METRICS_PROVIDER_TOKEN": "k", "METRICS_PROVIDER_APP_KEY": "a"}
    assert load(flags={}, environ=environ, cwd=tmp_path)[ProviderSettings].name == "datadog"
