"""`load-watcher doctor`: diagnoses a deployment, with one line per problem and its cure.

The checks run the code of `serve` for loading the settings, querying the source and reviewing its samples, so that both
come to the same results. The doctor adds only a complete pass over everything, and explanations.

`results` defines the results of a check, `examination` runs the checks of the table below, `pages` formats the report.
The other modules are checks: `surroundings` (settings, environment), `listening` (port, a running service), `database`,
`source` (the provider and its samples), `pods` (pod usage), `cluster` (Kubernetes: access, permissions, node names),
`dashboard` (the components that it shows), `scheduler` (the configuration of kube-scheduler, with `extenders`,
`plugins` and `circles`). The command line adds the checks of other packages (`agent.service.doctor`) to the table.
"""
