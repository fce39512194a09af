"""Node names: resolves the names of a source to nodes of the cluster, and follows renames over time.

`node_index` resolves a list of names at one moment, `renames` applies changes to the history. docs/node-names.md has
the rules.
"""
