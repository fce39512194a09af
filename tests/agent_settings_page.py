"""The page docs/reference/agent-settings.md: all settings of the agent and of the QoS Resource Manager."""

from __future__ import annotations

import sys

from agent.qrm.settings import QrmSettings
from agent.service.settings import AgentSettings, Query
from watcher.service.settings.reference import format_table

_HEADER = """\
# Settings of the node agent and the QoS Resource Manager

Status: `[agent]` is alpha, `[qrm]` is experimental.

The node agent reads the table `[agent]` of `load-watcher.toml`, the QoS Resource Manager the table `[qrm]`, and both
the tables `[log]`, `[kubernetes]` and `[cluster]` of the [watcher](settings.md). Each key can also be set with
`--set agent.KEY=VALUE`, or with the environment variable `LOAD_WATCHER_AGENT_KEY`; for `[qrm]`, with `--set
qrm.KEY=VALUE` or `LOAD_WATCHER_QRM_KEY`. Generate this page with
`python -m tests.agent_settings_page > docs/reference/agent-settings.md`; a test compares it.
"""
_AGENT = (
    "The DaemonSet sets `control`, `policies`, `proc`, `cgroup` and `state_file`, because its pods mount the host and "
    "the policies elsewhere."
)
_QUERIES = (
    "User-defined metrics from PromQL, evaluated by the server `agent.prometheus`; policies refer to them by NAME."
)
_QRM = "[The QoS Resource Manager](../concepts/qrm.md) describes modes, roles and the sizes of the pools."


def documentation() -> str:
    """The content of the page."""
    tables = [
        format_table("## `[agent]`", AgentSettings, _AGENT),
        format_table("## `[agent.queries.NAME]`", Query, _QUERIES),
        format_table("## `[qrm]`", QrmSettings, _QRM),
    ]
    return "\n".join([_HEADER, *tables])


if __name__ == "__main__":
    sys.stdout.write(documentation())
