"""A small Kubernetes API client: credentials, lists, watches and an informer.

It covers only the parts of the API that load-watcher uses. A full client library would bring every type of the API, but
not the difficult parts: a watch that ends without notice, a list that expires between two pages, and objects deleted
while no watch was open.

`client` sends requests and `informer` keeps a local copy up to date; start there. The types of objects and errors are
in watcher/core/kubernetes.
"""
