"""Simulation: place the pods of a recorded trace under several policies and compare the results.

`command` reads the options and runs the simulation. `engine` is the closed loop: pods arrive, are placed by one of the
`policies`, create load, and end; `trace_columns` has the trace as columns. `results` are the numbers, which `report`
and `charts` show. docs/concepts/simulation.md describes the scope and the limits.
"""
