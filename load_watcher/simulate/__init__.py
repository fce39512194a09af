"""Simulation: a trace of node load and pods, placed anew under several policies, side by side.

    course.py      pure: a trace as columns, to be asked for any minute
    load.py        pure: what nodes and pods want at a time, step by step
    windows.py     pure: the windows that decisions see, by the watcher's own history
    policies.py    who decides: a profile of plug-ins, or one of kube-scheduler's own scores
    engine.py      the closed loop: pods come, are placed, make load, and go
    results.py     pure: what came out, in numbers
    pages.py       the numbers as a table, CSV and a page; pictures.py draws them

docs/simulation.md says what is simulated and what is not.
"""
