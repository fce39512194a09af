"""Requests to the servers that load comes from: connections, credentials, retries, errors, and the Prometheus API."""
