"""Kubernetes objects as values: reduced object types, quantities, times, wire format and errors.

`objects` declares the types; watcher/platform/kube sends the requests.
"""
