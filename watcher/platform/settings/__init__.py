"""The settings of the service, where each came from, and what is wrong with them.

Flags win over the environment, that over the TOML file, that over defaults. `tables` names all tables; each setting is
declared once, in the file of its table (`*_tables`), by what `declaring` has for it. `values` reads and writes single
values, and `model_values`, `matchers`, `selections` and `policy_rules` those that are more than a text or a number.
`sources` takes in what was given; `checks` holds settings against each other; `loading` makes the one `Settings` out of
all of it; `pages` writes it down again. Other packages need only the names below, and to have tables of their own what
`declaring`, `values` and `part_tables` have. Nothing here reads the process's own environment or working directory:
both are arguments.
"""
