"""Shadow mode: how other profiles would have placed each bound pod.

`mode` follows bindings and ranks the nodes, `records` is the stored format, `report` and `pages` serve the result.
"""
