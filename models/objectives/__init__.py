"""What an update minimises: advantages, losses, importance weights, and the batches they are functions of."""
