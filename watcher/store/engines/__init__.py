"""The databases: `database` is the interface, which `sqlite` and `postgresql` implement."""
