"""The HTTP API: an answer is either true or an error, and making it waits for nothing but memory.

`handlers` says which path is answered by what: `nodes`, `pods`, `node_metrics`, `history` and `health` have a function
per path. `operations` describes them for people and for /openapi.json, `routing` finds them, guards them and counts.
How a request is read is in `parameters` and `negotiation`, what is served at the moment in `current`, how an answer is
made in `making`, `responses`, `series` and `refusals`, what fails below HTTP in `runner`. `service` says what all of
this needs of the service behind it. Nothing is imported here: the processes on a node have pages too, and no windows.
"""
