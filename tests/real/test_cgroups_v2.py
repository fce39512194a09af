"""Control groups of version 2 with the cpu controller, in a separate Linux (uml.py): one boot, and a test for each
check.

The machines of tests have version 1, or version 2 without its controllers; this Linux has all except PSI, which
test_cgroups_v1.py tests in the machine's own tree.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.real import in_uml_cgroups
from tests.real.uml import run_in_uml

pytestmark = [pytest.mark.real, pytest.mark.uml]


@pytest.fixture(scope="module")
def results() -> Mapping[str, Any]:
    """The error of each check, in lines; empty if it passed."""
    packages = ("agent/__init__.py", "agent/qos.py", "agent/cgroups")
    return run_in_uml(Path(in_uml_cgroups.__file__), packages=packages)


def test_the_controllers_are_available(results: Mapping[str, Any]):
    assert {"cpu", "memory", "pids"} <= set(results["controllers"])


@pytest.mark.parametrize("check", in_uml_cgroups.CHECKS, ids=lambda check: check.__name__)
def test_the_kernels_control_groups(results: Mapping[str, Any], check: Any):
    assert results[check.__name__] == [], "\n".join(results[check.__name__])
