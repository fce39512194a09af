"""Registry of the scheduling plug-ins.

A new plug-in needs one file, one line here, and one test file. Third-party packages add plug-ins with the entry-point
group `load_watcher.scorers`: a class with `name`, `arguments`, and `score` or `filter` or both
(`framework.PluginFactory`).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from scorers.plugin_api.framework import FilterPlugin, PluginFactory, ScorePlugin
from watcher.core.messages import nearest
from watcher.platform import entry_points

ENTRY_POINT_GROUP = "load_watcher.scorers"

PLUGINS: Mapping[str, str] = {
    "TargetLoadPacking": "scorers.plugins.target_load_packing:TargetLoadPacking",
    "LoadVariationRiskBalancing": "scorers.plugins.load_variation_risk_balancing:LoadVariationRiskBalancing",
    "LowRiskOverCommitment": "scorers.plugins.low_risk_over_commitment:LowRiskOverCommitment",
    "Peaks": "scorers.plugins.peaks:Peaks",
    "NodeResourceLimits": "scorers.plugins.node_resource_limits:NodeResourceLimits",
    "LoadAwareScheduling": "scorers.plugins.koordinator.load_aware_scheduling:LoadAwareScheduling",
    "HighLoadFilter": "scorers.plugins.high_load_filter:HighLoadFilter",
}


class UnknownPlugin(ValueError):
    """No plug-in has this name, or its package cannot be loaded; `cure` is the suggested fix."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(message)
        self.cure = cure


def known_names() -> tuple[str, ...]:
    """Return the names of the installed plug-ins, sorted."""
    return tuple(sorted({*PLUGINS, *entry_points.names(ENTRY_POINT_GROUP)}))


def factory_of(name: str) -> PluginFactory[ScorePlugin | FilterPlugin]:
    """Return the factory of the plug-in with this name. Raises UnknownPlugin."""
    if name in PLUGINS:
        module, attribute = PLUGINS[name].split(":")
        return _checked(name, getattr(import_module(module), attribute))
    try:
        factory = entry_points.load(ENTRY_POINT_GROUP, name)
    except KeyError as error:
        known = known_names()
        near = nearest(name, known)
        cure = f"did you mean {near}?" if near else "check the spelling"
        raise UnknownPlugin(f"unknown plug-in {name}; installed plug-ins: {', '.join(known)}", cure) from error
    except entry_points.AmbiguousEntryPoint as error:
        raise UnknownPlugin(
            f"plug-in {name} is provided by several packages: {error.packages}", "uninstall all but one"
        ) from error
    except entry_points.EntryPointLoadError as error:
        raise UnknownPlugin(
            f"plug-in {name} cannot be loaded from package {error.homes}: {error}",
            f"fix or uninstall {error.homes}; check its dependencies and the load-watcher version that it supports",
        ) from error
    return _checked(name, factory)


def extension_points(factory: PluginFactory[Any]) -> tuple[str, ...]:
    """Return the extension points that the plug-in implements: "filter", "score"."""
    return tuple(point for point in ("filter", "score") if callable(getattr(factory, point, None)))


def _checked(name: str, factory: Any) -> PluginFactory[ScorePlugin | FilterPlugin]:
    lacking = [each for each in ("name", "arguments") if not hasattr(factory, each)]
    if not extension_points(factory):
        lacking.append("score or filter")
    if lacking:
        cure = "see docs/learn/own-plugin.md for the required attributes"
        raise UnknownPlugin(f"plug-in {name} lacks {', '.join(lacking)}", cure)
    made: PluginFactory[ScorePlugin | FilterPlugin] = factory
    return made
