"""The cluster as the plug-ins read it: nodes, pods and load as columns with one row per node.

`table.ClusterTable` holds the columns; start there. `informer` is the source of nodes and pods, `load` and
`node_metrics` hold measurements, `unmeasured_pods` the pods that no measurement includes yet.
"""
