"""Identity of a result beside its inputs: the user's modules, libraries, versions of our own code."""
