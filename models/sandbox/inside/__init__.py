"""Code that runs within the sandbox's namespaces: the standard library alone, started in a clean interpreter.

It holds no expected output, no verdict and no secret: a program that takes it over has gained its own limits.
"""
