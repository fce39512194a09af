"""The decision log: records each decision of the extender, its scores with their steps, and its outcome.

`log` receives decisions, `records` and `shadow_records` define the stored formats, and `recorder` passes records to the
store. `pages` and `decision_document` serve them to `load-watcher why`.
"""
