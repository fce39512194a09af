"""Scores by a pasted profile, from the watcher's windows alone: no [scheduler] and no Kubernetes API are needed.

`module` adds the route to the service, `scoring` reads the request and scores the nodes.
"""
