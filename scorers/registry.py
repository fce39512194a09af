"""The plug-ins, and the table that names them.

A new plug-in is one file, one line here and one test file. Outside packages add theirs through the entry-point group
`load_watcher.scorers`: a class with `name`, `arguments` and `score` or `filter` or both (`framework.Factory`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from scorers.framework import Factory, FilterPlugin, ScorePlugin
from watcher import extensions

ENTRY_POINT_GROUP = "load_watcher.scorers"

PLUGINS: Mapping[str, str] = {
    "TargetLoadPacking": "scorers.target_load_packing:TargetLoadPacking",
    "LoadVariationRiskBalancing": "scorers.load_variation_risk_balancing:LoadVariationRiskBalancing",
    "LowRiskOverCommitment": "scorers.low_risk_over_commitment:LowRiskOverCommitment",
    "Peaks": "scorers.peaks:Peaks",
    "NodeResourceLimits": "scorers.node_resource_limits:NodeResourceLimits",
    "LoadAwareScheduling": "scorers.koordinator.load_aware_scheduling:LoadAwareScheduling",
    "HighLoadFilter": "scorers.high_load_filter:HighLoadFilter",
}


class UnknownPlugin(ValueError):
    """There is no plug-in of this name, or the package that it is in does not work; `cure` says what to do."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(message)
        self.cure = cure


def known_names() -> tuple[str, ...]:
    """The plug-ins of this installation, sorted."""
    return tuple(sorted({*PLUGINS, *extensions.names(ENTRY_POINT_GROUP)}))


def factory_of(name: str) -> Factory[ScorePlugin | FilterPlugin]:
    """Who makes the plug-in of this name. Raises UnknownPlugin."""
    if name in PLUGINS:
        module, attribute = PLUGINS[name].split(":")
        return _checked(name, getattr(import_module(module), attribute))
    try:
        factory = extensions.load(ENTRY_POINT_GROUP, name)
    except KeyError as error:
        known = known_names()
        near = difflib.get_close_matches(name, known, n=1)
        cure = f"did you mean {near[0]}?" if near else "check the spelling"
        raise UnknownPlugin(f"there is no plug-in {name}; known are {', '.join(known)}", cure) from error
    except extensions.InSeveralPackages as error:
        raise UnknownPlugin(
            f"the plug-in {name} is in several packages, {error.homes}", "uninstall all but one"
        ) from error
    except extensions.CannotBeLoaded as error:
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
