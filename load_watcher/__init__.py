"""The program `load-watcher`: commands, demo, simulation, doctor, comparison and recording. It is the only package that
imports watcher, scorers and agent; no package imports it.

`main` lists the commands; `commands` has one module for each of them.
"""
