"""What Gradus adds to vLLM's own worker process: what weights it holds, in its own words.

Named by its path in the engine's arguments, so that no function has to be pickled into that process.
"""

from typing import Any

from torch import nn

from models.evidence import tensor_sum


class Witness:
    """Methods that vLLM mixes into its worker; `collective_rpc` calls them by name."""

    model_runner: Any

    def gradus_tensors(self) -> dict[str, tuple[str, list[int]]]:
        """Name, number format and shape of every parameter; fused and repacked ones are no tensor of a checkpoint."""
        return {name: (str(p.dtype).removeprefix("torch."), list(p.shape)) for name, p in self._parameters().items()}

    def gradus_sums(self, rows: dict[str, int]) -> dict[str, str]:
        """Checksums of the first so many rows of the named parameters; vLLM pads vocabularies."""
        held = self._parameters()
        return {name: tensor_sum(held[name][:num_rows]) for name, num_rows in rows.items()}

    def gradus_repack(self) -> None:
        """After a reload: repack an output layer that shares its weights with the embedding.

        On a CPU vLLM 0.32 packs it at the start and leaves it out of a reload, since no file names its weights.
        """
        model: nn.Module = self.model_runner.get_model()
        packed: Any
        for name, packed in model.named_modules():
            if name.endswith("lm_head") and hasattr(packed, "cpu_linear"):
                packed.quant_method.process_weights_after_loading(packed)

    def _parameters(self) -> dict[str, nn.Parameter]:
        model: nn.Module = self.model_runner.get_model()
        return dict(model.named_parameters())
