"""Resource plug-ins from other packages, each served on its own socket like the built-in plug-ins.

A package provides a plug-in through the entry-point group `load_watcher.qrm_plugins`: a function (or class) that takes
the machine and the table of roles and returns an `agent.qrm.plugins.base.ResourcePlugin`
(docs/learn/own-resource-plugin.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent.qrm.plugins.base import ResourcePlugin
from agent.qrm.plugins.cpu_topology import CpuTopology
from agent.qrm.roles import RoleTable
from watcher.platform import entry_points
from watcher.platform.entry_points import ExtensionError

ENTRY_POINT_GROUP = "load_watcher.qrm_plugins"
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
"""Valid plug-in names; the name is used for the socket and the state file."""


def outside_plugins(machine: CpuTopology, roles: RoleTable, builtin: Iterable[ResourcePlugin]) -> list[ResourcePlugin]:
    """The plug-ins of all entry points, sorted by entry-point name. Raises Refused."""
    serving = {plugin.resource: "the built-in plug-in" for plugin in builtin}
    names = {plugin.name for plugin in builtin}
    made = []
    for entry in sorted(entry_points.names(ENTRY_POINT_GROUP)):
        plugin = _of_package(entry, machine, roles)
        package = entry_points.packages_of(ENTRY_POINT_GROUP, entry)
        if plugin.resource in serving:
            other = serving[plugin.resource]
            raise ExtensionError(
                f"the plug-in {entry} of the package {package} serves {plugin.resource}, which {other} also serves",
                f"Uninstall {package} or disable the built-in one (qrm.cpu_plugin, qrm.memory_plugin, qrm.nic_plugin).",
            )
        if plugin.name in names:
            raise ExtensionError(
                f"the plug-in {entry} of the package {package} has the name {plugin.name}, which is already used",
                f"Uninstall {package}, or rename its plug-in.",
            )
        serving[plugin.resource] = f"the plug-in of the package {package}"
        names.add(plugin.name)
        made.append(plugin)
    return made


def _of_package(entry: str, machine: CpuTopology, roles: RoleTable) -> ResourcePlugin:
    """Build the plug-in of one entry point. Raises Refused."""
    made = entry_points.build(ENTRY_POINT_GROUP, entry, machine, roles, what="plug-in")
    package = entry_points.packages_of(ENTRY_POINT_GROUP, entry)
    if not isinstance(made, ResourcePlugin):
        raise ExtensionError(
            f"the plug-in {entry} of the package {package} is not a resource plug-in but {type(made).__name__}",
            "See docs/learn/own-resource-plugin.md for the interface that the returned object must have.",
        )
    if not FILE_NAME.fullmatch(str(made.name)) or not made.resource:
        raise ExtensionError(
            f"the plug-in {entry} of the package {package} has the name {made.name!r}, resource {made.resource!r}",
            "The name must be a file name (letters, digits, '_', '.', '-'), and the resource must not be empty.",
        )
    return made
