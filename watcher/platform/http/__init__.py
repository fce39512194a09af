"""HTTP serving shared by the service, the agent and the QoS Resource Manager, over aiohttp.

`routing` maps requests to handlers, `parameters` and `negotiation` parse requests, `responses` builds responses,
`openapi` describes the routes, and `runner` handles errors below HTTP. It imports no window code, so that node
processes stay small.
"""
