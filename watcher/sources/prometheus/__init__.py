"""Provider for Prometheus, Thanos, Mimir and VictoriaMetrics. Start with `provider`.

`queries` has the candidate queries of each metric, `transport` sends them with time limits, and `responses` parses the
answers. `pods` reads pod usage.
"""
