"""Code that the service, the scorers, the agent and the tools share: HTTP, Kubernetes API, settings, checks.

It imports only watcher.core and the values below it.
"""
