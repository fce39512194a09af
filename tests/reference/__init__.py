"""Emulators of the originals, with their faults. Tests compare the product and the originals with them."""
