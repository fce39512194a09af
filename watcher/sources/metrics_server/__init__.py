"""Provider for metrics-server, which every cluster with `kubectl top` has; `provider` for nodes, `pods` for pods."""
