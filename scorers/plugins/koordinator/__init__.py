"""Koordinator's load-aware scheduling (seed 001; reference/koordinator.md): rules of its own for classes of pods, for
what a pod will use, and for what a node was measured to use.

`classes`, `estimator` and `owners` look at pods, `metrics` at NodeMetrics and how they stand in columns, `assigned`
adds up what measurements do not contain yet, `arguments` are the plug-in's, and `load_aware_scheduling` is the plug-in.
"""
