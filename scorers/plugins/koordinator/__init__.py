"""Koordinator's load-aware scheduling: its rules for pod classes, the estimated usage of a pod, and the measured usage
of a node.

`load_aware_scheduling` is the plug-in; start there. `estimator`, `workload_usage` and `assigned_pods` compute usage
that measurements do not contain, `arguments` and `thresholds` evaluate its settings.
"""
