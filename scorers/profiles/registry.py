"""The plug-ins, and the table that names them.

A new plug-in is one file, one line here and one test file. Outside packages add theirs through the entry-point group
`load_watcher.scorers`: a class with `name`, `arguments` and `score` or `filter` or both (`framework.Factory`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from scorers.plugin_api.framework import Factory, FilterPlugin, ScorePlugin
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
    """There is no plug-in of this name, or the package that it is in does not work; `cure` says what to do."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(message)
        self.cure = cure


def known_names() -> tuple[str, ...]:
    """The plug-ins of this installation, sorted."""
    return tuple(sorted({*PLUGINS, *entry_points.names(ENTRY_POINT_GROUP)}))


def factory_of(name: str) -> Factory[ScorePlugin | FilterPlugin]:
    """Who makes the plug-in of this name. Raises UnknownPlugin."""
    if name in PLUGINS:
        module, attribute = PLUGINS[name].split(":")
        return _checked(name, getattr(import_module(module), attribute))
    try:
        factory = entry_points.load(ENTRY_POINT_GROUP, name)
    except KeyError as error:
        known = known_names()
        near = difflib.get_close_matches(name, known, n=1)
        cure = f"did you mean {near[0]}?" if near else "check the spelling"
        raise UnknownPlugin(f"there is no plug-in {name}; known are {', '.join(known)}", cure) from error
    except entry_points.InSeveralPackages as error:
        raise UnknownPlugin(
            f"the plug-in {name} is in several packages, {error.homes}", "uninstall all but one"
        ) from error
    except entry_points.CannotBeLoaded as error:
        raise UnknownPlugin(
            f"the plug-in {name} cannot be loaded from the package {error.homes}: {error}",
            f"mend or uninstall {error.homes}; was it made for this version of load-watcher, with its dependencies?",
        ) from error
    return _checked(name, factory)


def extension_points(factory: Factory[Any]) -> tuple[str, ...]:
    """Where kube-scheduler asks it: "filter", "score"."""
    return tuple(point for point in ("filter", "score") if callable(getattr(factory, point, None)))


def _checked(name: str, factory: Any) -> Factory[ScorePlugin | FilterPlugin]:
    lacking = [each for each in ("name", "arguments") if not hasattr(factory, each)]
    if not extension_points(factory):
        lacking.append("score or filter")
    if lacking:
        cure = "docs/own-plugin.md says what a plug-in has"
        raise UnknownPlugin(f"the plug-in {name} lacks {', '.join(lacking)}", cure)
    made: Factory[ScorePlugin | FilterPlugin] = factory
    return made
