"""The audit log of the agent, an SQLite file: every action with its reason and result, the original values that it has
to restore, and the state that one cycle passes to the next.

`log.Audit` is the interface; start there.
"""
