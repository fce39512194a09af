"""`load-watcher record`: records the cluster of a running service as a trace for `simulate` and `replay`.

`recorder` polls the service once a minute and continues after failures, `builder` converts the observed nodes and pods
to trace records, and `file` writes a trace that is complete up to the last minute even after a kill.
"""
