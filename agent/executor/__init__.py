"""Carries out plans: restorable quotas, evictions under budgets, and the node's taint. It changes nothing unless
enforcement is enabled.

`executor` decides what of a plan is carried out, and `plan_run` carries out its steps. `knob_writer` changes quotas,
cpu.weight and memory.high by compare-and-set, and `groups` finds the control groups. `cluster` uses the Kubernetes API;
`control_map` reads the ConfigMap that stops the agents and holds the eviction budget. `conflicts` detects other agents
that manage the same groups, and `cgroup_lock` locks the groups against other load-watcher agents. `effects` measures
the release of steps, and `recent_evictions` counts evictions independently of wall clock changes.
"""
