"""Carries out plans: restorable quotas, evictions under budgets, and the node's taint. It changes nothing unless
enforcement is enabled.

`executor` processes a plan. `quotas` changes quotas, cpu.weight and memory.high by compare-and-set, and `groups` finds
the control groups. `cluster` uses the Kubernetes API; `control` reads the ConfigMap that stops the agents and holds the
eviction budget. `rivals` detects other agents that manage the same groups, and `claim` locks the groups against other
load-watcher agents. `effects` measures the release of steps, and `recent` counts evictions independently of wall clock
changes.
"""
