"""What runs on each node, client of the watcher API. Nothing here yet: it comes with the precise executor."""
