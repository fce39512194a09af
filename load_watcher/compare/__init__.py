"""`load-watcher compare`: compares two services, for example before a migration.

- `comparison`: pure; parses the responses and accumulates their differences
- `asking`: queries both services, once or repeatedly
- `report`: formats the result as tables or JSON
"""
