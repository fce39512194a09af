"""The decision log: the decisions of the extender with their outcomes, and the bindings of shadow mode.

`log` and `shadow` record them, `records` defines the stored forms, and `recorder` passes records to the store. `pages`
serves them to `load-watcher why` and `load-watcher shadow` as `documents` and `shadow_report`.
"""
