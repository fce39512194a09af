"""Reads a profile's load-watcher plug-ins and their arguments, from [scheduler.NAME] or a KubeSchedulerConfiguration.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from watcher.decoding.yaml_text import decode_yaml_documents

Args = Mapping[str, Any]

FILTERING = ("HighLoadFilter", "LoadAwareScheduling", "NodeResourceLimits")
SCORING = (
    *("TargetLoadPacking", "LoadVariationRiskBalancing", "LowRiskOverCommitment", "Peaks", "NodeResourceLimits"),
    "LoadAwareScheduling",
)


@dataclass(frozen=True, slots=True)
class PluginUse:
    """Arguments of the filter and score plug-ins by plug-in name; `others`: the profile also has unknown plug-ins."""

    filtering: Mapping[str, Args]
    scoring: Mapping[str, Args]
    others: bool = False


@dataclass(frozen=True, slots=True)
class ProfilePlugins:
    """A scheduler profile with its plug-ins; `where` names it in messages."""

    where: str
    use: PluginUse


# --- documents of YAML -----------------------------------------------------------------------------------------------


def mapping(given: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, otherwise an empty one."""
    return given if isinstance(given, Mapping) else {}


def mappings(given: Any) -> list[Mapping[str, Any]]:
    """The mappings in a list; none if the value is not a list."""
    return [each for each in given if isinstance(each, Mapping)] if isinstance(given, list) else []


def documents_in(given: Iterable[Any], *, marker: str) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings among decoded documents, and in place of a ConfigMap those in its data, of texts that contain
    `marker`. Raises msgspec.DecodeError for such a text that is not YAML."""
    for document in given:
        if not isinstance(document, dict):
            continue
        data = document.get("data")
        if document.get("kind") == "ConfigMap" and isinstance(data, dict):
            for text in (each for each in data.values() if isinstance(each, str) and marker in each):
                yield from documents_in(decode_yaml_documents(text), marker=marker)
        else:
            yield document


# --- plug-ins --------------------------------------------------------------------------------------------------------


def use_of(plugins: Mapping[str, Any], *, filtering: bool = True, scoring: bool = True) -> PluginUse:
    """Return the use of these plug-ins (name to arguments) at the given extension points. Arguments that are not a
    mapping count as empty.
    """
    args = {name: mapping(given) for name, given in plugins.items()}
    filters = {name: each for name, each in args.items() if name in FILTERING and _filters(name, each)}
    scores = {name: each for name, each in args.items() if name in SCORING}
    others = any(name not in (*FILTERING, *SCORING) for name in args)
    return PluginUse(filters if filtering else {}, scores if scoring else {}, others)


def _filters(name: str, args: Args) -> bool:
    return name != "NodeResourceLimits" or args.get("filter") is True


def joined(*uses: PluginUse) -> PluginUse:
    """Combine several uses; of repeated plug-ins the last arguments apply."""
    return PluginUse(
        {name: args for use in uses for name, args in use.filtering.items()},
        {name: args for use in uses for name, args in use.scoring.items()},
        any(use.others for use in uses),
    )


def use_of_table(table: Mapping[str, Any]) -> PluginUse:
    """Return the plug-in use of a table [scheduler.NAME] with the key `plugins`."""
    return use_of({str(each.get("name")): each.get("args") for each in mappings(table.get("plugins"))})


def use_of_profile(profile: Mapping[str, Any], *, filtering: set[str], scoring: set[str]) -> PluginUse:
    """Return the plug-in use of a KubeSchedulerConfiguration profile; `filtering` and `scoring` are the names of the
    plug-ins enabled at these extension points.
    """
    args = {str(each.get("name")): each.get("args") for each in mappings(profile.get("pluginConfig"))}
    return joined(
        use_of({name: args.get(name) for name in filtering}, scoring=False),
        use_of({name: args.get(name) for name in scoring}, filtering=False),
    )
