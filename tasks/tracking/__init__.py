"""Reports of a run for MLflow, by a process of its own; `reporter`, `sending` and `rows` import mlflow."""
