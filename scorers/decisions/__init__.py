"""The decision log: records each decision of the extender, its scores with their steps, and its outcome.

`log` receives decisions, `records` defines their stored format, and `recorder` passes them and the records of shadow
mode to the store. `pages` and `decision_document` serve them to `load-watcher why`.
"""
