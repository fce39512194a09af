"""The sources, one file each, and the table that names them.

A provider's library is imported in that provider's file alone, and that file only when the provider is chosen. A new
source is one file, one line here and one test file; outside packages add theirs through the entry-point group
`load_watcher.providers` (a function from settings to a Provider).
"""
