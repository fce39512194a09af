"""Current resource usage of the node and its pods, as one value per cycle: agent.model.State.

`collector` builds it from /proc (`proc_reader`), the control groups of the pods (`cgroup_usage`), and sources that
background tasks keep up to date: the list of pods (`kubelet`, `api_pods`), and metrics of other servers (`remote`).
`readings` defines the data exchanged between them.

This package makes no decisions: an unknown value is missing with the reason, and never 0.
"""
