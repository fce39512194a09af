"""Real components for tests (a Prometheus, a node exporter), and realistic load for them."""
