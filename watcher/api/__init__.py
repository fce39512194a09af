"""The HTTP API. A response is either correct data or an error, and most responses are served from memory.

`handlers` lists the routes; `nodes`, `pods`, `node_metrics`, `history` and `health` contain one handler per path.
`operations` describes the routes for /openapi.json. `routing` matches requests, checks access and counts requests.
`parameters` and `negotiation` parse requests, `current` holds the published documents, and `making`, `responses`,
`series` and `refusals` build response bodies and errors. `runner` handles errors below HTTP. `service` declares the
interface that the service behind the API implements. This package imports nothing: node processes (agent, QoS Resource
Manager) use parts of it and must not load the window code.
"""
