"""From samples to windows: the history of the last minutes, the statistics over it, and snapshots.

`history` stores the samples as arrays, `statistics` computes the windows, `snapshot` selects the served nodes, and
`backfill` plans which older samples to fetch.
"""
