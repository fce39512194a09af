"""`load-watcher record`: what happens in the cluster of a running service, as a trace for `simulate` and `replay`.

- `observed`: pure; the nodes and pods of a cluster as a service with [scheduler] tells them (GET /scheduler/cluster)
- `changes`: pure; what is seen, minute by minute, to records of a trace
- `file`: the file, whole to the last minute whatever becomes of the process
- `asking`: asks the service once a minute, and goes on where it cannot
"""
