"""The settings of the service, their origins and their problems.

Flags take precedence over environment variables, these over the TOML file, and the file over defaults. `tables` lists
all tables; each setting is declared once, in the module of its table (`*_tables`), with the types in `declaring`.
`values` parses and formats simple values; `model_values`, `matchers`, `selections` and `policy_rules` handle structured
ones. `sources` reads flags, environment and file; `checks` validates combinations of settings; `loading` builds the
`Settings` object; `pages` formats settings and their documentation. Other packages use only the names below; packages
with tables of their own also use `declaring`, `values` and `part_tables`. Nothing here reads the process's environment
or working directory: both are arguments.
"""
