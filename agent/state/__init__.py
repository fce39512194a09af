"""What the node and its pods use now, as one value of one instant: agent.model.State.

`collector` makes it, from `node` (/proc), `usage` (control groups of pods), and those who keep themselves up to date
(`keeping`): which pods there are (`kubelet`, `informed`; `facts` reads their objects), the watcher's windows
(`windows`) and questions to a Prometheus (`queries`, `prometheus`). `readings` has what these hand each other, `proc`
and `rates` are pure.

Nothing here decides: what is not known is missing, with the reason, and never a 0.
"""
