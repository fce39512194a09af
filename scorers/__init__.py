"""Scheduling plug-ins, the kube-scheduler extender that runs them, and shadow mode.

`extender.service` builds everything inside the watcher's service, and `extender.handlers` answers kube-scheduler.
`plugins` has the plug-ins, `plugin_api` their interface, `profiles` runs them, and `cluster` is the data they read.
docs/concepts/architecture.md has the flow of a request.
"""
