"""`load-watcher top`: usage beside requests, of nodes and pods."""
