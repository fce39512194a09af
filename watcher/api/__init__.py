"""The HTTP API. A response is either correct data or an error, and most responses are served from memory.

`routes` lists the routes, and each module of `handlers` handles one group of paths. `operations` describes the
routes for /openapi.json, and `service` declares the interface that the service behind the API implements. The code
that node processes share with the API (routing, parameters, responses) is in watcher/platform/http.
"""
