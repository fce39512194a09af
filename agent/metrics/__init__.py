"""The metrics that the agent acts on: the `builtin` ones, and the registry of all.

Other packages add metrics through the entry-point group `load_watcher.agent_metrics` (agent/service/custom_metrics.py).
A rule on a collected metric that is not in the registry only keeps new pods away; it does not throttle or evict pods.
Pressure (psi_*) is not in the registry, because the pressure of a node also rises when a pod waits for its own limit
(Kubernetes enhancement 5062), and no measurement separates the two.

Pure: no I/O, no clock.
"""
