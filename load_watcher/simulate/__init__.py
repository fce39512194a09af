"""Simulation: place the pods of a recorded trace under several policies and compare the results.

    course.py      pure: a trace as columns, indexed by time
    load.py        pure: demand of nodes and pods over time
    windows.py     pure: the windows that decisions use, computed by the watcher's own history
    policies.py    placement policies: a profile of plug-ins, or one of kube-scheduler's own scores
    engine.py      the closed loop: pods arrive, are placed, create load, and end
    results.py     pure: the results in numbers
    pages.py       the numbers as a table, CSV and an HTML page; pictures.py draws the charts

docs/simulation.md describes the scope and the limits of the simulation.
"""
