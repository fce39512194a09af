"""The program `load-watcher`: its commands, the doctor, and the extender as a process. No package imports it, except
that the laboratory imports `cli`.

`main` lists the commands; `commands` has one module for each of them.
"""
