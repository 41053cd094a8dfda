"""Every component of the registry, in the company that it declares: packs and padding change nothing of its gradient,
and the gradient of a step that is not taken is that of the update.

tests.models.training.parallel.test_objectives does the same on two ranks.
"""

import pytest
import torch

from gradus.models.training.gradients import half_gradients
from gradus.models.training.packed.forward import form_of
from gradus.models.training.passes import Budget
from gradus.models.training.update import Step, counted_rows
from tests.models.objectives.registry import EVERY, LOOSER, TOLERANCE, prepared, trained_by


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_micro_batches_packs_and_padding_change_no_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, metrics = trained_by(name, 10_000)
    norm = float(torch.linalg.vector_norm(whole))
    assert norm > 1e-4
    config, objective, rows, state = prepared(name)
    step = Step(state, counted_rows(rows, objective), objective, config, form_of(state.model), Budget(30))
    untaken = half_gradients(step, rows["group"] % 2 == 1, 2**20)
    difference = untaken.halves[0] + untaken.halves[1] + whole
    assert float(torch.linalg.vector_norm(difference)) <= LOOSER.get(name, TOLERANCE) * norm
    assert untaken.norm == pytest.approx(norm, rel=1e-3)
    for form, micro_tokens in (("packed", 40), ("padded", 60)):
        monkeypatch.setattr("gradus.models.training.update.form_of", lambda _model, form=form: form)
        found, others = trained_by(name, micro_tokens)
        assert float(torch.linalg.vector_norm(found - whole)) <= LOOSER.get(name, TOLERANCE) * norm, (
            form,
            micro_tokens,
        )
        assert others == pytest.approx(metrics, rel=1e-4, abs=1e-6), (form, micro_tokens)
