"""The Prometheus metrics that every process exports, and helpers for the metrics of a package."""
