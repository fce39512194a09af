"""The tick: fetches samples once per interval, and publishes and stores the windows computed from them.

`tick.Refresher` runs the ticks; start there. `pipeline` does their computation in a worker thread, and `pods` refreshes
pod usage.
"""
