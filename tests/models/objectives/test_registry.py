"""Every component of the registry, in the company that it declares: packs and padding change nothing of its gradient.

tests.models.training.parallel.test_objectives does the same on two ranks.
"""

import pytest
import torch

from tests.models.objectives.registry import EVERY, LOOSER, TOLERANCE, trained_by


@pytest.mark.parametrize("name", EVERY)
def test_micro_batches_packs_and_padding_change_no_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, metrics = trained_by(name, 10_000)
    norm = float(torch.linalg.vector_norm(whole))
    assert norm > 1e-4
    for form, micro_tokens in (("packed", 40), ("padded", 60)):
        monkeypatch.setattr("gradus.models.training.update.form_of", lambda _model, form=form: form)
        found, others = trained_by(name, micro_tokens)
        assert float(torch.linalg.vector_norm(found - whole)) <= LOOSER.get(name, TOLERANCE) * norm, (
            form,
            micro_tokens,
        )
        assert others == pytest.approx(metrics, rel=1e-4, abs=1e-6), (form, micro_tokens)
