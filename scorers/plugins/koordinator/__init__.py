"""Koordinator's load-aware scheduling: its rules for pod classes, for the estimated usage of a pod, and for the
measured usage of a node.

`classes`, `estimator` and `owners` evaluate pods, `metrics` reads NodeMetrics into columns, `assigned` adds up usage
that measurements do not contain yet, `arguments` has the plug-in's arguments, and `load_aware_scheduling` is the
plug-in.
"""
