"""Problems: what an operator should look at first, one sentence per problem with its cure, from data that is published.

`fleet_problems` is the entry point; `hot_nodes` and `finding_causes` are its parts.
"""
