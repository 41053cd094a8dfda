"""Files that the package brings along: recipes, bundled problems and policy, server settings, pinned versions."""

from importlib.resources import files
from pathlib import Path


def package_file(*parts: str) -> Path:
    """Return the path of a file or folder of the package, in a checkout and in an installed wheel.

    >>> package_file("recipes", "demo.toml").name
    'demo.toml'
    """
    return Path(str(files("gradus"))).joinpath(*parts)
