"""Profiles whose plug-ins use the load of GPUs, which the watcher measures only if `provider.metrics` includes it."""

from __future__ import annotations

from scorers.cluster.columns import GPU_RESOURCES
from scorers.plugin_api.arguments import read_arguments
from scorers.plugins.koordinator.arguments import LoadAwareSchedulingArgs
from scorers.plugins.target_load_packing import GPU, TargetLoadPackingArgs
from scorers.profiles.profiles import PluginSettings, ProfileSettings
from scorers.profiles.registry import factory_of


def missing_gpu_notices(profile: ProfileSettings) -> tuple[str, ...]:
    """Return one sentence for each plug-in of the profile that uses the load of GPUs, for a watcher without it."""
    return tuple(
        f"{each.name} uses the load of GPUs, which is not measured; add GPU to provider.metrics"
        for each in profile.plugins
        if _uses_gpu_load(each)
    )


def _uses_gpu_load(plugin: PluginSettings) -> bool:
    arguments, _ = read_arguments(plugin.name, factory_of(plugin.name).arguments, plugin.args)
    if isinstance(arguments, TargetLoadPackingArgs):
        return GPU in arguments.resources
    if isinstance(arguments, LoadAwareSchedulingArgs) and arguments.node_metric_source != "cluster":
        return not set(GPU_RESOURCES).isdisjoint(arguments.resources)
    return False
