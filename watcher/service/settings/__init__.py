"""The settings of the service, their origins and their problems.

Flags take precedence over environment variables, these over the TOML file, and the file over defaults. `tables` lists
all sections; each setting is declared once, in the module of its section in `sections`, with `field_metadata`.
`layers` reads flags, environment and file, `loading` builds the `Settings` object, `checks` validates combinations, and
`reference` writes docs/reference/settings.md. Nothing here reads the process's environment or working directory: both
are arguments.
"""
