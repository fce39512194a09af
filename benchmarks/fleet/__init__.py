"""The cost of a fleet: thousands of agents and one service against a real API server. `python -m benchmarks.fleet`."""
