"""Carries out plans: restorable quotas, evictions under budgets, and the node's taint. It changes nothing unless
enforcement is enabled.

`executor` decides what of a plan is carried out, and `plan_run` carries out its steps. `knob_writer` changes quotas,
cpu.weight and memory.high by compare-and-set. `cluster` uses the Kubernetes API;
`enforcement_switch` reads the ConfigMap that stops the agents and holds the eviction budget. `other_agents` detects
agents that manage the same groups, and locks the groups against other load-watcher agents. `report` holds the
results: step outcomes, measured release, and recent evictions.
"""
