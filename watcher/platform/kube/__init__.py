"""A small Kubernetes API client: credentials, lists, watches and an informer.

It covers only the parts of the API that load-watcher uses. A full client library would bring every type of the API, but
not the difficult parts: a watch that ends without notice, a list that expires between two pages, and objects deleted
while no watch was open. `objects` and `shapes` declare reduced object types; `informer` keeps a local copy up to date,
and `sharing` shares one copy between several users.

`credentials` finds the account, `client` sends requests, `answers` decodes responses, `errors` turns failures into
exceptions with a hint for the operator, `quantity` parses Kubernetes quantities. `eviction` and `changes` modify
objects, `events` reports Events, `leases` elects one of several replicas.
"""
