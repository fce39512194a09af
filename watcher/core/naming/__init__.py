"""Node names: resolves the names of a source to nodes of the cluster, and follows renames over time.

`name_resolver` resolves a list of names at one moment, `renames` applies changes to the history.
docs/reference/node-names.md has the rules.
"""
