"""What a result depends on beside its inputs: the user's modules, libraries, versions of our own code."""
