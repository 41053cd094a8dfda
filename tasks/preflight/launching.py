"""Check the requirements of an update on several processes before anything starts; torch is not imported.

check_launch(UpdateConfig.model_validate({"launch": {"processes": 2}, "optimizer": "adamw_8bit"}))     # UsageError
"""

import os
from pathlib import Path

from gradus.data.errors import UsageError
from gradus.tasks.config.learning import UpdateConfig


def check_launch(config: UpdateConfig) -> None:
    """Raise UsageError if several processes cannot do the update, or if it asks for more GPUs than there are.

    GPUs of other hosts are counted there.
    """
    launch = config.launch
    if launch.num_ranks == 1:
        return
    if config.lora is not None and config.lora.quantize != "none":
        raise UsageError(
            "update.launch: several processes cannot divide a base in 4 bits (update.lora.quantize = nf4)",
            hint="set update.lora.quantize=none, or leave update.launch out",
        )
    if config.lora is None and not config.optimizer.component.elementwise:
        raise UsageError(
            f"update.launch: the optimizer {config.optimizer.label} needs whole parameters, and a rank has a part",
            hint="set update.optimizer to adamw or sgd, or declare yours with elementwise=True",
        )
    there = num_gpus()
    if there and config.device != "cpu" and launch.processes > there:
        raise UsageError(
            f"update.launch.processes = {launch.processes}, and this machine has {there} GPUs",
            hint=f"set update.launch.processes={there}, or update.device=cpu",
        )


def num_gpus() -> int:
    """Return how many NVIDIA GPUs a process started here would see; 0 if none, or if they are another maker's."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return found if chosen is None else min(found, len([name for name in chosen.split(",") if name.strip()]))
