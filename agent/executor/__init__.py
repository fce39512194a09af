"""Carrying out plans: quotas that can be put back, evictions under budgets, the node's taint, and nothing of it unless
enforcing was asked for.

`executor` goes through a plan; `quotas` changes CPU quotas by comparing and setting, `groups` finds them; `cluster`
does what goes through the Kubernetes API, `control` has the ConfigMap with the brake and the budget; `rivals` knows
other agents that manage the same groups, and `claim` keeps all but one of ours from it; `effects` holds what was
planned against what is measured, and `recent` counts evictions, whoever sets the clock.
"""
