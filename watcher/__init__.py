"""The service: reads samples of node load and serves windows computed from them.

This package computes 5-, 10- and 15-minute windows from Prometheus, this host or other sources, stores and serves them,
and has the client of that API. Decisions based on them (scores, throttling) are in `scorers` and `agent`. Start with
`refresh.tick`; docs/concepts/architecture.md lists the packages in order of their layers.
"""

__version__ = "0.1.0"
