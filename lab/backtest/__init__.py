"""Implementation of `load-watcher forecast`: how well forecasts predict the peaks of a recorded trace.

A trace is read into a `UsageGrid` (`layouts`), its VMs are dealt to `Machines` (`deals`), all predictors issue bounds
(`predictions`, with the simple ones in `predictors`), and `summary` compares the bounds with the peaks.
"""
