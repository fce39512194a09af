"""Rights that the agent's settings need in the Kubernetes API; the doctor checks them.

`deploy/agent` grants the rights of preview mode, and some components in `deploy/components` the rights of what they
enable; the chart grants all of them by its values. docs/concepts/agent-safety.md lists them.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.policy.schema import GROUP
from agent.policy.source import POLICY_RESOURCES
from agent.service.settings import KUBELET, AgentSettings
from agent.state.daemon_sets import DAEMON_SETS
from watcher.core.kubernetes.objects import CONFIG_MAPS, EVENTS, NODES, PODS
from watcher.platform.checks.permissions import Permission

BASE = "deploy/agent/rbac.yaml"
ENFORCE = "deploy/components/agent-enforce (in the chart: agent.config.agent.mode)"
API_PODS = "the chart, with agent.config.agent.pods: api,"
API_POLICIES = "deploy/components/agent-api-policies (in the chart: agent.apiPolicies)"


def required_rights(own: AgentSettings) -> Iterator[Permission]:
    """Yield the rights that an agent with these settings uses."""
    node = own.node_name()
    yield Permission("get", NODES, "the labels of its node, which select policies", name=node, granted_by=BASE)
    yield from _of_pods(own, node)
    if own.policies is None:
        for group, resources in POLICY_RESOURCES.items():
            for verb in ("list", "watch"):
                for resource in resources.values():
                    # Needed only where the group is installed; the check of the policies reports what fails.
                    purpose = f"policies of {group} from the API"
                    yield Permission(verb, resource, purpose, vital=group == GROUP, granted_by=API_POLICIES)
    if own.mode == "enforce":
        yield from _of_enforcement(own, node)


def _of_pods(own: AgentSettings, node: str) -> Iterator[Permission]:
    address = own.kubelet_address()
    if address is None and own.pods != KUBELET:
        for verb in ("list", "watch"):
            yield Permission(verb, PODS, "the pods of its node from the API", granted_by=API_PODS)
        yield Permission("get", DAEMON_SETS, "the DaemonSets that pods name as controllers", granted_by=API_PODS)
    elif not (address or "").startswith("http:") and own.kubelet_token_file is None:  # with this account's token
        purpose = "the pods of its node from the kubelet"
        yield Permission("get", NODES, purpose, subresource="pods", name=node, or_subresource="proxy", granted_by=BASE)


def _of_enforcement(own: AgentSettings, node: str) -> Iterator[Permission]:
    namespace, _, name = own.control.partition("/")
    purpose = "the brake and the eviction budget of the cluster"
    for verb in ("get", "patch"):
        yield Permission(verb, CONFIG_MAPS, purpose, namespace=namespace, name=name, granted_by=ENFORCE)
    yield Permission("list", NODES, f"{purpose} (the number of nodes)", granted_by=ENFORCE)
    yield Permission("get", PODS, "evictions", granted_by=ENFORCE)
    yield Permission("create", PODS, "evictions", subresource="eviction", granted_by=ENFORCE)
    purpose = "keeping new pods away from its node (taint and condition)"
    yield Permission("patch", NODES, purpose, name=node, granted_by=ENFORCE)
    yield Permission("patch", NODES, purpose, subresource="status", name=node, granted_by=ENFORCE)
    yield Permission("create", EVENTS, "Events on pods and on its node", vital=False, granted_by=ENFORCE)
