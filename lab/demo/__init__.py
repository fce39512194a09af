"""`load-watcher demo`: the service on a simulated cluster (lab/fleet), with the scheduling plug-ins.

`source` is the provider of samples, `scheduler` places the simulated pods, and `settings` has the demo's defaults.
"""
