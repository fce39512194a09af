"""`load-watcher doctor`: everything that a first deployment gets wrong, one line each, with the cure.

Nothing here knows better than the service does: the settings are loaded, the source is asked and its samples are judged
by the very code that `serve` runs, so the two cannot disagree. What is added is to look at everything at once, and to
say what it means.

`results` is what a check may say, `examination` runs the checks of the table below, `pages` writes them down. The rest
are checks: `surroundings` (settings, environment), `listening` (port, a running service), `database`, `source` (the
provider and its samples), `pods` (what they use), `cluster` (Kubernetes: access, permissions, names of nodes),
`dashboard` (whose pages it shows), `scheduler` (the configuration of kube-scheduler, with `extenders`, `plugins` and
`circles`). What other packages look at (`agent.service.doctor`) the command line adds to the table.
"""
