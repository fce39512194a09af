"""Real components for tests (a Prometheus, a node exporter), and believable load to put into them."""
