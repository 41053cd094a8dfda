"""An update on several processes: ranks that the stage's worker starts, watches and ends together."""
