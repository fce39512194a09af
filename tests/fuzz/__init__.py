"""Random requests to a running service."""
