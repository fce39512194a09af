"""The built-in resource plug-ins (CPUs, memory, network cards), those of other packages (`external`), and the adjuster
that resizes the CPU pools.

`base` defines the interface of a plug-in. `cpu` is the CPU plug-in;
`calculator` selects CPUs, and `resize` computes the sizes of the pools.
"""
