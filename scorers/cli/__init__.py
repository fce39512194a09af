"""HTTP clients of the commands score, why and shadow, and the tables that these commands print."""
