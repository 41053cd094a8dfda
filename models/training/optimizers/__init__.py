"""Optimisers: `(parameters, update, *, settings) -> torch.optim.Optimizer`, and their state as named tensors.

`update` are the settings of the update (gradus.models.training.settings.StepConfig): its `lr` is set at every step,
`betas` and `weight_decay` whenever an optimiser that has such continues with other settings.
"""
