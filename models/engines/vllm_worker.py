"""Extension of vLLM's own worker process: checksums of the weights it holds.

Named by its path in the engine's arguments, so that no function has to be pickled into that process.
"""

from typing import Any

from torch import Tensor, nn

from gradus.models.weight_check import tensor_sum


class WeightChecker:
    """Methods that vLLM mixes into its worker; `collective_rpc` calls them by name."""

    model_runner: Any

    def gradus_tensors(self) -> dict[str, tuple[str, list[int]]]:
        """Name, number format and shape of every parameter; fused and repacked ones are not tensors of a checkpoint."""
        return {name: (str(p.dtype).removeprefix("torch."), list(p.shape)) for name, p in self._parameters().items()}

    def gradus_sums(self, rows: dict[str, int]) -> dict[str, str]:
        """Return checksums of the first N rows of the named parameters; vLLM pads vocabularies."""
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

    def gradus_adapter(self, number: int) -> list[str]:
        """Checksums of the matrices held under an adapter's number, scale included, sorted; none of an unknown one."""
        adapter = self.model_runner.lora_manager._adapter_manager.get_adapter(number)  # noqa: SLF001 - shown nowhere else
        layers: list[Any] = [] if adapter is None else list(adapter.loras.values())
        return sorted(tensor_sum(tensor) for layer in layers for tensor in _matrices(layer))

    def _parameters(self) -> dict[str, nn.Parameter]:
        """By their names in a checkpoint: under adapters vLLM wraps the layers.

        Without a vocabulary's that is divided among workers: a padded part may be as large as the whole of a small one.
        """
        model: nn.Module = self.model_runner.get_model()
        padded = {n: layer for n, layer in model.named_modules() if hasattr(layer, "num_embeddings_padded")}
        layers = {n for n, layer in padded.items() if getattr(layer, "tp_size", 1) > 1}
        held = {n: p for n, p in model.named_parameters() if n.rpartition(".")[0] not in layers}
        return {name.replace(".base_layer.", "."): parameter for name, parameter in held.items()}


def _matrices(layer: Any) -> list[Tensor]:
    """A and B of a layer, of each part of a fused one; vLLM multiplies the scale into B."""
    sides = (layer.lora_a, layer.lora_b)
    parts: list[Any] = [tensor for side in sides for tensor in (side if isinstance(side, list) else [side])]
    return [tensor for tensor in parts if tensor is not None]
