"""`load-watcher doctor`: diagnoses a deployment, with one line per problem and its fix.

The checks run the code of `serve` for loading the settings, querying the source and reviewing its samples, so that both
come to the same results. `checks` is the table of the checks; most other modules are one check or a group of them, and
`report` formats the result. watcher/platform/checks runs them and defines their results.
"""
