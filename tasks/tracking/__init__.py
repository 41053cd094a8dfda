"""Reports of a run for MLflow, written by a process of its own. `reporter` is the only importer of mlflow."""
