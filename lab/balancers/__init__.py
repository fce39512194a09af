"""Balancers in the simulated closed loop: what each of them evicts and marks, from what it can observe.

A balancer is called at intervals with a `view.ClusterView`. `low_node_utilization` is the plug-in of
kubernetes-sigs/descheduler, `openshift` the profile KubeVirtRelieveAndMigrate of OpenShift's operator, `low_node_load`
the plug-in of Koordinator; `marks` uses the marks and the pressure of `scorers.marks`. `registry` has them by name.
"""
