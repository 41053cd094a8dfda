"""A current folder whose files are named as modules that Python and our children import."""

from pathlib import Path

HOSTILE = ("json", "sitecustomize", "prefect", "torch", "typing", "mlflow", "uvicorn")


def make_hostile(folder: Path) -> dict[str, str]:
    """Write files that end a process which imports them; return an environment in which warnings are errors."""
    for name in HOSTILE:
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name}.py of the current folder was imported')\n")
    return {"PYTHONWARNINGS": "error"}
