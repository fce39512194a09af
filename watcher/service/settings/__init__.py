"""The settings of the service, their origins and their problems.

Flags take precedence over environment variables, these over the TOML file, and the file over defaults. `tables` lists
all sections; each is declared in the `settings` module of the package that reads it. `layers` reads flags, environment
and file, `loading` builds the `Settings` object, `checks` validates combinations, and `show` formats the result.
Nothing here reads the process's environment or working directory: both are arguments.
"""
