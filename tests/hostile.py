"""A current folder whose files are named as modules that Python and our children import, or hold settings for them."""

from pathlib import Path

import yaml

HOSTILE = ("json", "sitecustomize", "prefect", "torch", "typing", "mlflow", "uvicorn")


def make_hostile(folder: Path) -> dict[str, str]:
    """Write files that end a process which imports them; return an environment in which warnings are errors."""
    for name in HOSTILE:
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name}.py of the current folder was imported')\n")
    return {"PYTHONWARNINGS": "error"}


def make_settings(folder: Path, canary: Path) -> None:
    """Write every file from which Prefect would take settings; each names a logging set-up that writes the canary."""
    logging = folder / "logging.yml"
    runs = {"()": "subprocess.getoutput", "cmd": f"echo {folder.name} >> {canary}"}
    handler = {"class": "logging.StreamHandler", "formatter": "runs"}
    root = {"handlers": ["handler"]}
    text = {"version": 1, "formatters": {"runs": runs}, "handlers": {"handler": handler}, "root": root}
    logging.write_text(yaml.safe_dump(text))
    (folder / ".env").write_text(f"PREFECT_LOGGING_CONFIG_PATH={logging}\nPREFECT_API_KEY=theirs\n")
    (folder / "prefect.toml").write_text(f'[logging]\nconfig_path = "{logging}"\n[flows]\ndefault_retries = 7\n')
    (folder / "pyproject.toml").write_text(
        f'[tool.prefect.logging]\nconfig_path = "{logging}"\n[tool.prefect.tasks]\ndefault_retries = 7\n'
    )
    profile = f'PREFECT_LOGGING_CONFIG_PATH = "{logging}"\nPREFECT_RUNNER_PROCESS_LIMIT = 7\n'
    (folder / "profiles.toml").write_text(f'active = "theirs"\n[profiles.theirs]\n{profile}')
