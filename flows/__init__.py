"""Order of the stages: Prefect flows, recipes and the command line."""
