"""Versions of installed distributions, with those of everything that they require."""

import importlib.metadata
import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError


def library_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Version of every distribution and of what it requires, directly or not; what is not installed is left out.

    >>> sorted(library_versions(["latex2sympy2_extended"]))
    ['antlr4-python3-runtime', 'latex2sympy2-extended', 'mpmath', 'sympy']
    """
    found: dict[str, str] = {}
    queue = [_normal(name) for name in distributions]
    while queue:
        name = queue.pop()
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.version(name)
        except PackageNotFoundError:
            continue
        queue += [
            _normal(required) for required in importlib.metadata.requires(name) or () if "extra ==" not in required
        ]
    return dict(sorted(found.items()))


def distributions_of(packages: Iterable[str]) -> list[str]:
    """The distributions that installed the packages of these import names; Gradus and unknown ones are left out."""
    found: set[str] = set()
    for package in packages:
        try:
            importlib.metadata.version(package)
            found.add(_normal(package))
        except PackageNotFoundError:  # another name than the distribution's, so all of them are searched
            found.update(map(_normal, importlib.metadata.packages_distributions().get(package, ())))
    return sorted(found - {"gradus"})


def _normal(requirement: str) -> str:
    """A requirement's name as PEP 503 writes it, without version and markers."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", name.group() if name else "").lower()
