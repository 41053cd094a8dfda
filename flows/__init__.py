"""When and in which order: Prefect flows, recipes and the command line."""
