"""Messages of NRI from and to the values of the manager.

Pure: no I/O, no clock.
"""
