"""The agent as a process: settings, construction, the cycle, HTTP pages, telemetry, and its check for the doctor.

`main` starts the process, `build` creates its components, and `loop` runs the cycles. `node_server` and `node_settings`
are shared with the QoS Resource Manager.
"""
