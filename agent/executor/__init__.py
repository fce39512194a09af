"""Carrying out plans: quotas that can be put back, evictions under budgets, the node's taint, and nothing of it unless
enforcing was asked for.

`executor` goes through a plan; `quotas` changes CPU quotas by comparing and setting, `groups` finds them; `cluster`
does what goes through the Kubernetes API, `control` has the ConfigMap with the brake and the budget; `rivals` knows
other agents that manage the same groups, and `claim` keeps all but one of ours from it; `effects` holds what was
planned against what is measured, and `recent` counts evictions, whoever sets the clock.
"""

from agent.executor.claim import Claim
from agent.executor.cluster import Cluster
from agent.executor.executor import Executor, Needed, OnExit, Permissions
from agent.executor.groups import Groups, KubeletGroups
from agent.executor.quotas import PutBack, Quotas
from agent.executor.report import Fate, Report, Result, Stance
from agent.limits import Limits

__all__ = [
    "Claim",
    "Cluster",
    "Executor",
    "Fate",
    "Groups",
    "KubeletGroups",
    "Limits",
    "Needed",
    "OnExit",
    "Permissions",
    "PutBack",
    "Quotas",
    "Report",
    "Result",
    "Stance",
]
