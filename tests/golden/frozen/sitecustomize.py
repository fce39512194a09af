"""Stop the wall clock of a Python process at FROZEN_UNIX_TIME (unix seconds); monotonic clocks are not changed."""

import os
import time

_FROZEN = float(os.environ["FROZEN_UNIX_TIME"])

time.time = lambda: _FROZEN
time.time_ns = lambda: int(_FROZEN * 1e9)
