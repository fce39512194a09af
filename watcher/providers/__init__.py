"""Table of the providers, each in its own module.

A provider's library is imported only in the provider's module, and the module only when the provider is selected. A new
provider needs one module, one entry in PROVIDERS and one test file. Other packages register providers in the
entry-point group `load_watcher.providers` (a function from Settings to a Provider).
"""
