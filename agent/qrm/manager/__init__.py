"""The manager: admits pods with the hints of the plug-ins, stores allocations, and applies them to containers.

`manager` has the admission and the reconcile round. The other modules are its computations and values; `topology`
merges hints.
"""
