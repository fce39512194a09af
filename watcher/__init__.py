"""The service: samples in, windows of node load out.

Here belongs what turns Prometheus, or this host, into 5-, 10- and 15-minute windows, keeps them and serves them, and
the client of that API. What decides from them (scores, throttling) belongs to `scorers` and `agent`.
"""

__version__ = "0.1.0"
