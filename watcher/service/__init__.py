"""The process of `load-watcher serve`: construction, start order, ticks, reload and shutdown.

`server.Watcher` is the service, `build` creates its components from the settings, and `main` runs it until a signal.
"""
