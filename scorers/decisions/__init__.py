"""The decision log: records each decision of the extender, its scores with their steps, and its outcome.

`log` receives decisions and passes them to the store, and `records` defines the stored format. `pages` and
`decision_document` serve them to `load-watcher why`.
"""
