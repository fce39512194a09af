"""The built-in scheduling plug-ins, one module each; scorers/profiles/registry.py is the table of their names."""
