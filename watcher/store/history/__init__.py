"""The history of windows in the database: the series of a node, and all of it for replay."""
