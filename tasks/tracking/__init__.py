"""Reports of a run for MLflow, by a process of its own; `reporter`, `sending`, `rows` and `lineage` import mlflow."""
