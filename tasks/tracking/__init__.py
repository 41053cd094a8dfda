"""Reports of a run for MLflow, written by a process of its own; `reporter`, `lineage` and `traces` import mlflow."""
