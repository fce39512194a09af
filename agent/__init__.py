"""What runs on each node, client of the watcher API: the precise throttle and evict executor."""
