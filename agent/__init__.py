"""The node agent: runs on each node, reads policies, and throttles or evicts pods while the node is overloaded.

`service.loop` is the cycle: `state` collects, `decision` plans with the `metrics` and `policy`, `executor` carries the
plan out through `cgroups` and the Kubernetes API, and `audit` records it. `qrm` is a separate process, the QoS Resource
Manager. docs/concepts/architecture.md has the flow from a policy to a written value.
"""
