"""An update on several processes: torchrun below the stage's worker, a rank each, watched and ended together."""
