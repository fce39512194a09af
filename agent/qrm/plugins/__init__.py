"""The built-in resource plug-ins (CPUs, memory, network cards), those of other packages (`external`), and the adjuster
that resizes the CPU pools.

`base` defines the interface of a plug-in, and `records` is the base of the built-in ones. `calculator` selects CPUs and
NUMA nodes, and `resize` computes the sizes of the pools.
"""
