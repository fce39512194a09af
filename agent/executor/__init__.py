"""Carries out plans: restorable quotas, evictions under budgets, and the node's taint. It changes nothing unless
enforcement is enabled.

`executor` processes a plan; start there. `knob_writer` changes quotas, cpu.weight and memory.high by compare-and-set,
`cluster` uses the Kubernetes API, and `control_map` reads the ConfigMap that stops the agents and holds the eviction
budget. `conflicts` and `cgroup_lock` protect against other agents that manage the same groups.
"""
