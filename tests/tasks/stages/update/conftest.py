"""A lake with a tiny real policy, rollouts of it and their scores, which the tests of stage update share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from gradus.data.lake.manifest import POINTER, identity_digest
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import state_identity, state_ref, weights_config
from gradus.data.records import JsonObject
from gradus.models.objectives.ragged import Ragged, distinct
from gradus.models.policy import load_policy, new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.models.training.packed.logprobs import token_logprobs
from gradus.models.training.packed.packing import pack_of
from gradus.tasks.host.processes import Warm
from gradus.tasks.runtime.calls import Job, execute

Row = dict[str, Any]
Beat = Callable[..., None]
ROW_TYPES = pa.schema(
    [
        ("rollout_id", pa.string()),
        ("problem_id", pa.string()),
        ("group_id", pa.string()),
        ("completion", pa.string()),
        ("prompt_tokens", pa.list_(pa.int32())),
        ("completion_tokens", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("finish_reason", pa.string()),
        ("hint_level", pa.int32()),
        ("policy", pa.string()),
        ("temperature", pa.float64()),
    ]
)
CUT_TYPES = {"top_p": pa.float64(), "top_k": pa.int32()}


def policy_ref(store: Store, folder: Path, seed: int = 0) -> Ref:
    made = new_policy(tiny_tokenizer(), width=32, layers=1, heads=2, max_positions=64, seed=seed)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return store.adopt(folder)


def state_folder(checkpoint: Path) -> Path:
    """The folder of a checkpoint's train state."""
    ref = state_ref(Ref("checkpoints", checkpoint.name))
    return checkpoint.parent.parent / ref.table / ref.digest


def replace_state(store: Store, made: Path, belongs_to: Ref, **files: bytes | None) -> None:
    """Write the train state of a checkpoint anew, for the weights of another one, with these files; None: without."""
    checkpoint = Ref("checkpoints", made.name)
    there = {path.stem: path.read_bytes() for path in state_folder(made).iterdir() if path.name[0] not in "._"}
    names = {path.stem: path.name for path in state_folder(made).iterdir()}
    store.discard(state_ref(checkpoint))
    out = store.writer(state_ref(checkpoint))
    for stem, content in {**there, **files}.items():
        if content is not None:
            out.write_file(names[stem], content)
    out.commit(identity=state_identity(checkpoint), config=weights_config(store.manifest(belongs_to).files))


class House:
    """A lake with a policy and rollouts of three problems, four completions each."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root / "lake")
        self.policy = policy_ref(self.store, root / "policy")
        self.other = policy_ref(self.store, root / "other", seed=1)
        self.rewards: list[float | None] = [1, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1]
        self.steps = {"epochs": 2, "minibatch_groups": 1, "lr": 1e-2}
        self.runs = 0

    def rows(self, policy: Ref | None = None, problems: str = "abc", level: int = 0, **changes: Any) -> list[Row]:
        """Rollouts with the log-probs that the policy really has; `changes` go into the first row."""
        used = policy or self.policy
        model = load_policy(self.store.path(used), "float32").model
        prompts = [[9 + i, 10 + level] for i, _ in enumerate(problems) for _ in range(4)]
        completions = [[8 + (5 * i) % 12 + k for k in range(1 + i % 3)] + [1] for i in range(len(prompts))]
        given = Ragged.of(prompts)
        pack = pack_of(torch.arange(len(given)), distinct(given), given, Ragged.of(completions))
        with torch.no_grad():
            logp = token_logprobs(model, pack, torch.ones(len(prompts)), "padded").logp
        values = [part.tolist() for part in logp.split([len(c) for c in completions])]
        rows = [
            {
                "rollout_id": f"{problems[i // 4]}@r1h{level}:{i % 4}",
                "problem_id": problems[i // 4],
                "group_id": f"{problems[i // 4]}@r1h{level}",
                "completion": "<b>text</b>",
                "prompt_tokens": prompts[i],
                "completion_tokens": completions[i],
                "logprobs": values[i],
                "finish_reason": "length" if i == 0 else "stop",
                "hint_level": level,
                "policy": used.digest,
                "temperature": 1.0,
            }
            for i in range(len(prompts))
        ]
        rows[0].update(changes)
        return rows

    def put(self, rows: list[Row], **cut: float) -> Ref:
        """The rows in the lake, all with the top_p and top_k that `cut` has."""
        table = pa.Table.from_pylist(rows, schema=ROW_TYPES)
        for name, value in cut.items():
            table = table.append_column(name, pa.array([value] * len(rows), CUT_TYPES[name]))
        return self.store.put("rollouts", table)

    def score(self, rows: list[Row], rewards: list[float | None]) -> Ref:
        """Scores in another order than the rollouts."""
        table = pa.table(
            {
                "rollout_id": [r["rollout_id"] for r in rows],
                "problem_id": [r["problem_id"] for r in rows],
                "reward": pa.array(rewards, pa.float64()),
                "correct": pa.array([None if r is None else r > 0.5 for r in rewards], pa.bool_()),
            }
        )
        return self.store.put("scores", table.take(pa.array(range(len(rows))[::-1])))

    def job(self, inputs: dict[str, list[Ref]], facts: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:
        self.runs += 1
        identity: JsonObject = {"stage": "update", "seed": 5, "number": self.runs}
        return vars(
            Job(
                stage="update",
                lake=str(self.store.root),
                output=str(Ref("checkpoints", identity_digest(identity))),
                inputs={role: [str(ref) for ref in refs] for role, refs in inputs.items()},
                config=config,
                seed=5,
                identity=identity,
                facts=facts or {},
            )
        )

    def run(
        self, job: dict[str, Any], warm: Warm | None = None, beat: Beat = lambda _frac, _text="": None
    ) -> tuple[Path, dict[str, Any]]:
        report = execute(job, warm or Warm(), beat)
        return self.store.path(Ref.parse(job["output"])), report

    def inputs(
        self,
        policy: Ref | None = None,
        rows: list[Row] | None = None,
        rewards: list[float | None] | None = None,
        **more: list[Ref],
    ) -> dict[str, list[Ref]]:
        """Inputs of an update of a policy on rollouts of its own."""
        used = policy or self.policy
        rows = rows or self.rows(used)
        scores = self.score(rows, rewards or self.rewards)
        return {"rollouts": [self.put(rows)], "scores": [scores], "policy": [used], **more}

    def update(self, rows: list[Row], rewards: list[float | None], **config: Any) -> tuple[Path, dict[str, Any]]:
        return self.run(self.job(self.inputs(rows=rows, rewards=rewards), **config))

    def interrupt(self, job: dict[str, Any], at: str) -> None:
        """Run a job until its progress begins so."""

        def interrupted(_frac: float, text: str = "") -> None:
            if text.startswith(at):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            execute(job, Warm(), interrupted)

    @staticmethod
    def weights(folder: Path) -> dict[str, torch.Tensor]:
        return load_file(folder / "model.safetensors")

    @staticmethod
    def same_files(first: Path, second: Path, but: frozenset[str] = frozenset()) -> bool:
        """Whether two checkpoints hold the same, their manifests and reports, and `but`, apart."""
        names = {p.name for p in first.iterdir() if p.is_file()} - {"_manifest.json", "_report.json", POINTER} - but
        assert {"model.safetensors", "config.json"} <= names
        states = state_folder(first), state_folder(second)
        kept = {p.name for p in states[0].iterdir()} - {"_manifest.json"}
        assert {"optimizer.safetensors", "state.json"} <= kept
        pairs = [(first / name, second / name) for name in names]
        pairs += [(states[0] / name, states[1] / name) for name in kept]
        return all(one.read_bytes() == other.read_bytes() for one, other in pairs)


@pytest.fixture
def new_house(tmp_path: Path) -> Callable[[str], House]:
    """Make houses by name, for a test that needs several."""
    return lambda name: House(tmp_path / name)


@pytest.fixture
def house(new_house: Callable[[str], House]) -> House:
    return new_house("house")
