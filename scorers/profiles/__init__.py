"""Scheduler profiles: the plug-ins with weights and arguments, and their combination into one score per node.

`registry` is the table of the plug-ins, `profiles` reads [scheduler.NAME], and `ranking` runs the plug-ins of a
profile.
"""
