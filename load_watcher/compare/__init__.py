"""`load-watcher compare`: two services side by side, to switch from the one to the other without a surprise.

- `comparison`: pure; reading two answers and adding up how they differ
- `asking`: asks both, once or for a while
- `report`: what came out, as tables or JSON
"""
