"""Small network functions: name resolution, bounded reads of bodies, loopback addresses, redaction of credentials."""
