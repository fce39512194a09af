"""The node agent: runs on each node, reads policies, and throttles or evicts pods while the node is overloaded."""
