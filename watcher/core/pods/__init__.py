"""Pod usage: its table with one reading per minute, and the selection of pods by label. Start with `table`."""
