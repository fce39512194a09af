"""Current resource usage of the node and its pods, as one value per cycle: agent.model.State.

`collector` builds it from `node` (/proc), `usage` (control groups of pods), and sources that a background task keeps up
to date (`keeping`): the list of pods (`kubelet`, `informed`; `facts` decodes their objects), the watcher's windows
(`windows`) and Prometheus queries (`queries`, `prometheus`). `readings` defines the data exchanged between them; `proc`
and `rates` are pure.

This package makes no decisions: an unknown value is missing with the reason, and never 0.
"""
