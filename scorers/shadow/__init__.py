"""Shadow mode: how other profiles would have placed each bound pod.

`mode` follows bindings and ranks the nodes, `report` and `pages` serve the result.
"""
