"""The stages that learn: update, gradient and warmstart."""
