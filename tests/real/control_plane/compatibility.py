"""Write the table of docs/reference/compatibility.md from the results of `make kube` on each version:

    make compatibility

Each run stores its results in build/kubernetes-MINOR.xml. A cell is "yes" if all tests of the function passed.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

from tests.modules.programs import MODULES, kubernetes
from tests.real.parts import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "compatibility.md"
MARKER = "real_apiserver"
BEGIN, END = "<!-- table: make compatibility -->", "<!-- end of the table -->"

FUNCTIONS = {
    "API client: lists, watches, eviction, taints, conditions, binding, credentials": ("test_kube_apiserver",),
    "copies of objects: restarts of the API server, compaction, 410, expired tokens": (
        "test_informer",
        "test_kube_restart",
    ),
    "eviction in `policy/v1`: budgets, Retry-After, unhealthy and finished pods": ("test_eviction",),
    "in-place resize, pod-level resources": ("test_resize",),
    "manifests and chart: strict field validation, Pod Security levels": (
        "test_manifests",
        "test_kube_manifests",
        "test_helm",
    ),
    "API priority and fairness": ("test_kube_flowcontrol",),
    "service, with its granted rights only": ("test_service_rights",),
    "agent, with its granted rights only": ("test_agent_rights", "test_kube_agent"),
    "QoS Resource Manager, with its granted rights only": ("test_qrm_rights",),
    "pods that look like pods of kubelets or DaemonSets (ValidatingAdmissionPolicy)": ("test_pod_origin",),
    "tokens limited to their node (ValidatingAdmissionPolicy), brake under `kubectl apply`": (
        "test_node_restriction",
        "test_brake",
    ),
    "NodeMetrics for Koordinator": ("test_node_metrics_kube", "test_usage_thresholds_kube"),
    "marks on nodes, with its granted rights only (ValidatingAdmissionPolicy)": ("test_marks",),
    "extender in kube-scheduler": (
        "test_scheduling_kube",
        "test_scheduling_weight",
        "test_scheduling_faults",
        "test_scheduling_reserve",
        "test_benchmarks",
        "test_turn_off",
    ),
    "fleet of agents": ("test_fleet",),
    "Trimaran plug-ins of scheduler-plugins v0.34.7": ("test_scheduling_trimaran",),
    "kubectl, and the test server of the other tests": ("test_kubectl", "test_kube_fake"),
}
"""The test modules of each function, by the last part of their names; some may not exist."""


def result_files() -> dict[str, Path]:
    """Return the files in which `make kube` stores its results, by version of Kubernetes, the newest first."""
    minors = [path.name.removeprefix("kubernetes-") for path in MODULES.glob("kubernetes-*")]
    minors.sort(key=lambda minor: [int(part) for part in minor.split(".")], reverse=True)
    return {kubernetes(minor).version: REPOSITORY / "build" / f"kubernetes-{minor}.xml" for minor in minors}


def read_results(path: Path) -> Mapping[str, bool]:
    """Return whether all tests of a module passed, by the last part of its name. Skipped tests do not count."""
    passed: dict[str, bool] = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("skipped") is None:
            module = case.attrib["classname"].rpartition(".")[2]
            good = case.find("failure") is None and case.find("error") is None
            passed[module] = passed.get(module, True) and good
    return passed


def table(results: Mapping[str, Mapping[str, bool]]) -> str:
    """Return the table for results by version and module. Functions without a result in any version are left out."""
    lines = [f"| function | {' | '.join(results)} |", f"|---|{'---|' * len(results)}"]
    for function, modules in FUNCTIONS.items():
        found = [[of[module] for module in modules if module in of] for of in results.values()]
        if any(found):
            cells = ["not tested" if not each else "yes" if all(each) else "**no**" for each in found]
            lines.append(f"| {function} | {' | '.join(cells)} |")
    return "\n".join(lines)


def unlisted() -> list[Path]:
    """Return the modules with tests of a real API server that belong to no function."""
    listed = {module for modules in FUNCTIONS.values() for module in modules}
    others = (path for path in sorted((REPOSITORY / "tests").rglob("test_*.py")) if path.stem not in listed)
    return [path for path in others if f"mark.{MARKER}" in path.read_text()]


def main() -> int:
    """Write the page; return exit code 1 if results are missing."""
    files = result_files()
    missing = [version for version, path in files.items() if not path.exists()]
    if missing:
        print(f"no results for {', '.join(missing)}: run make compatibility", file=sys.stderr)
        return 1
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    written = table({version: read_results(path) for version, path in files.items()})
    PAGE.write_text(f"{before}{BEGIN}\n\n{written}\n\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
