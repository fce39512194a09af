"""A simulated cluster for `load-watcher demo`: machines, workloads and their load.

The usage of a pod is a function of seed, pod and time; the usage of a node is the sum over its pods at that time. So
the past can be computed at once, and a placed pod changes the load seen by the next decision.

`cluster` is the life cycle of the pods; start there. `machines`, `workloads`, `load` and `faults` generate its data.
"""
