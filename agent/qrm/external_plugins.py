"""Resource plug-ins of other packages: served beside ours, each on a socket of its own.

A package adds one through the entry-point group `load_watcher.qrm_plugins`: a function (or class) from the machine and
the table of roles to a plug-in, as `agent.qrm.plugins.base.Plugin` has it (docs/own-resource-plugin.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent.qrm.plugins.base import Plugin
from agent.qrm.plugins.cpu_topology import Machine
from agent.qrm.roles import RoleTable
from watcher.platform import entry_points
from watcher.platform.entry_points import Refused

ENTRY_POINT_GROUP = "load_watcher.qrm_plugins"
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
"""A plug-in's name is that of its socket and its state file."""


def outside_plugins(machine: Machine, roles: RoleTable, builtin: Iterable[Plugin]) -> list[Plugin]:
    """One for each entry point, by name. Raises Refused."""
    serving = {plugin.resource: "load-watcher's own" for plugin in builtin}
    names = {plugin.name for plugin in builtin}
    made = []
    for entry in sorted(entry_points.names(ENTRY_POINT_GROUP)):
        plugin = _of_package(entry, machine, roles)
        package = entry_points.home(ENTRY_POINT_GROUP, entry)
        if plugin.resource in serving:
            other = serving[plugin.resource]
            raise Refused(
                f"the plug-in {entry} of the package {package} is for {plugin.resource}, and so is {other}",
                f"Uninstall {package}, or switch ours off (qrm.cpu_plugin, qrm.memory_plugin, qrm.nic_plugin).",
            )
        if plugin.name in names:
            raise Refused(
                f"the plug-in {entry} of the package {package} has the name {plugin.name}, and so has another one",
                f"Uninstall {package}, or have it mended.",
            )
        serving[plugin.resource] = f"that of the package {package}"
        names.add(plugin.name)
        made.append(plugin)
    return made


def _of_package(entry: str, machine: Machine, roles: RoleTable) -> Plugin:
    """What an entry point brings."""
    made = entry_points.made(ENTRY_POINT_GROUP, entry, machine, roles, what="plug-in")
    package = entry_points.home(ENTRY_POINT_GROUP, entry)
    if not isinstance(made, Plugin):
        raise Refused(
            f"the plug-in {entry} of the package {package} is no resource plug-in but {type(made).__name__}",
            "docs/own-resource-plugin.md says what the function returns.",
        )
    if not FILE_NAME.fullmatch(str(made.name)) or not made.resource:
        raise Refused(
            f"the plug-in {entry} of the package {package} calls itself {made.name!r}, for {made.resource!r}",
            "Its name is that of a file (letters, digits, '_', '.', '-'), and its resource what pods request.",
        )
    return made
