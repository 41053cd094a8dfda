"""The Prefect and MLflow servers: started, found, shared, protected, ended."""
