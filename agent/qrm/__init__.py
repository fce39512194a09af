"""The QoS Resource Manager: assigns CPUs, memory nodes and network cards to containers.

`main` builds the process. `reconciler` is its loop: it admits pods and applies allocations with `manager`, which calls
the resource `plugins` through `grpc`, stores the result with `store`, and sets it with `runtime`.
docs/concepts/architecture.md has the flow from an Allocate call to a cpuset.
"""
