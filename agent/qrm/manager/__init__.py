"""The manager: admits pods with the hints of the plug-ins, stores allocations, and applies them to containers.

`manager` has the lock, the admission and the reconcile round. `plugin_requests` builds the requests, `hint_merger` and
`topology` merge hints, `allocator` stores allocations and follows the plug-ins, and `applying` sets properties.
"""
