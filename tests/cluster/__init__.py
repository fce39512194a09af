"""A Kubernetes cluster with real kubelets on this machine: see cluster.py, and `make cluster`."""
