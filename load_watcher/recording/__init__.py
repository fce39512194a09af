"""`load-watcher record`: records the cluster of a running service as a trace for `simulate` and `replay`.

- `observed`: pure; nodes and pods of a cluster as returned by a service with [scheduler] (GET /scheduler/cluster)
- `changes`: pure; converts observations to trace records
- `file`: the trace file, complete up to the last minute even if the process is killed
- `asking`: polls the service once a minute and continues after failures
"""
