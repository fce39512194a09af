"""The decision log: records each decision of the extender, its scores with their steps, and its outcome.

`log` receives decisions and passes them to the store, `records` defines the stored format, and `pages` and `why` serve
them to `load-watcher why`.
"""
