"""Requests and limits of pods: component-helpers of Kubernetes, and load-watcher."""
