"""The extender as a process of its own: the scheduling plug-ins with the load of a watcher at another address.

`process` connects the parts, `pages` has the health and metrics pages.
"""
