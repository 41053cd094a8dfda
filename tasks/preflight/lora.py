"""Check that an update can train the adapter that its settings ask for, on this machine.

check_lora(UpdateConfig(lora=LoraConfig(quantize="nf4")))    # UsageError: no GPU here
"""

from importlib.util import find_spec

from gradus.data.errors import UsageError
from gradus.tasks.config.learning import UpdateConfig


def check_lora(config: UpdateConfig) -> None:
    """Raise UsageError if a package or a GPU is missing, or if another part of the update trains all weights."""
    if config.lora is None:
        return
    if config.needs_critic:
        raise UsageError(
            f"update.advantage = {config.advantage.label} trains a critic with all weights of a policy, update.lora "
            "an adapter alone",
            hint="take an advantage without a critic, such as grpo, or leave update.lora out",
        )
    _require("peft", "update.lora", "pip install 'gradus[lora]'")
    if config.lora.quantize == "nf4":
        _require("bitsandbytes", "update.lora.quantize = nf4", "pip install bitsandbytes, or set it to none")
        _require_gpu(config)


def _require(package: str, setting: str, hint: str) -> None:
    if find_spec(package) is None:
        raise UsageError(f"{setting} needs the package {package}, which is not installed", hint=hint)


def _require_gpu(config: UpdateConfig) -> None:
    import torch  # noqa: PLC0415 - seconds, for those alone who ask for it

    if config.device == "cpu" or not torch.cuda.is_available():
        where = "update.device is cpu" if config.device == "cpu" else "PyTorch sees none here"
        raise UsageError(
            f"update.lora.quantize = nf4 computes on a GPU, and {where}", hint="set update.lora.quantize=none"
        )
