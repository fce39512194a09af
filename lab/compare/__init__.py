"""`load-watcher compare`: compares two services, for example before a migration.

`client` queries both services, `comparison` accumulates their differences, and `report` formats the result as
tables or JSON.
"""
