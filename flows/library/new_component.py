"""`gradus new`: a component of the user's own with its test and its method, which run as they stand.

In the templates, NAME is the name of the component; imports follow from the names that a text uses.
"""

import keyword
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradus.components import KINDS, Kind
from gradus.components.registry import SETTINGS
from gradus.data.errors import UsageError
from gradus.data.nearest import did_you_mean

TEMPLATES: Mapping[Kind, tuple[str, str]] = {
    "filter": (
        '''
@component("filter", needs=("question",))
def NAME(candidates: Rows, *, max_chars: Annotated[int, Ge(1)] = 400):
    """Keep problems whose question has at most `max_chars` characters.

    Args:
        max_chars: Longest question that is kept.
    """
    chars = np.array([len(question or "") for question in candidates["question"]])
    return selection(candidates.num_rows, [(chars > max_chars, "NAME: a longer question")])
''',
        """
    found = NAME(Rows({"question": np.array(["1 + 1 =", "1 + 2 + 3 ="])}), max_chars=8)
    assert found.kept.tolist() == [True, False]
""",
    ),
    "ranking": (
        '''
@component("ranking", needs=("question",))
def NAME(candidates: Rows):
    """Return the negative length of each question, (N,): the shortest is ranked first."""
    return -np.array([float(len(question or "")) for question in candidates["question"]])
''',
        """
    assert NAME(Rows({"question": np.array(["1 + 1 =", "2 ="])})).tolist() == [-7.0, -3.0]
""",
    ),
    "sampler": (
        '''
@component("sampler", needs=())
def NAME(candidates: Rows, num: int, rng: np.random.Generator):
    """Draw problems with equal probability and without repetition; every weight is 1."""
    index = rng.permutation(candidates.num_rows)[:num]
    return Draw(index, np.ones(len(index)), np.zeros(len(index), dtype=bool))
''',
        """
    draw = NAME(Rows({"problem_id": np.array(["a", "b", "c"])}), 2, np.random.default_rng(0))
    assert len(set(draw.index.tolist())) == 2
    assert draw.weight.tolist() == [1.0, 1.0]
""",
    ),
    "hint": (
        '''
@component("hint")
def NAME(problem, fraction: float):
    """Return the first share of the worked solution's words; None for a problem without one."""
    words = (problem["solution"] or "").split()
    return " ".join(words[: max(1, int(fraction * len(words)))]) + "\\n" if words else None
''',
        """
    assert NAME({"solution": "first add one"}, 0.7) == "first add\\n"
    assert NAME({"solution": None}, 0.7) is None
""",
    ),
    "wave": (
        '''
@component("wave", needs=("group", "correct"))
def NAME(round: Round, rng: np.random.Generator):
    """Sample every group of which no row is correct again."""
    right = round.rows.by("group").sum(round.rows["correct"])
    return round.plan(like=first_rows(round.rows, right == 0), reason="no row of the group was correct")
''',
        """
    rows = pa.table({"problem_id": ["a", "a", "b"], "group": [0, 0, 1], "correct": [1.0, 0.0, 0.0]})
    assert NAME(round_of(rows), np.random.default_rng(0)).problem_id.to_pylist() == ["b"]
""",
    ),
    "tracker": (
        '''
@component("tracker", by=("problem_id",), columns=("mean",), needs=("problem_id", "reward"))
def NAME(before: Tracked, round: Round, *, rate: Annotated[float, Gt(0.0), Le(1.0)] = 0.5):
    """Keep a running mean of the rewards of each problem: mean <- mean + rate (newest - mean).

    Args:
        rate: Weight of the newest round.
    """
    known = ~np.isnan(round.rows["reward"])
    problem, number = np.unique(round.rows["problem_id"][known].astype(str), return_inverse=True)
    newest = np.bincount(number, round.rows["reward"][known], len(problem)) / np.bincount(number)
    mean = before.at("mean", problem)
    return {"problem_id": problem, "mean": np.where(np.isnan(mean), newest, mean + rate * (newest - mean))}
''',
        """
    rows = pa.table({"problem_id": ["a", "a", "b"], "group": [0, 0, 1], "reward": [1.0, 0.0, 1.0]})
    before = Tracked(pa.table({"problem_id": ["b"], "mean": [0.5]}), keys=("problem_id",))
    assert NAME(before, round_of(rows))["mean"].tolist() == [0.5, 0.75]
""",
    ),
    "measure": (
        '''
@component("measure", by=("problem_id",), columns=("nats",), needs=("question", "messages", "answer"))
def NAME(rows: Rows, model: Model):
    """Return how much the answer of each problem surprises the model: minus the log-prob of all its tokens, nats."""
    found = model.logprobs(model.prompts(rows["question"], rows["messages"]), model.tokens(rows["answer"]))
    return {"nats": [-sum(found.logp[row]) if len(found.logp[row]) else None for row in range(rows.num_rows)]}
''',
        """
    class Always:
        prompts = staticmethod(lambda questions, messages: [[1]] * len(questions))
        tokens = staticmethod(lambda texts: [[1]] * len(texts))
        logprobs = staticmethod(lambda contexts, targets: SimpleNamespace(logp=[[-0.5, -1.0], []]))

    rows = Rows({"question": ["2 + 2 =", "?"], "messages": [None, None], "answer": ["4", ""]})
    assert NAME(rows, Always())["nats"] == [1.5, None]
""",
    ),
    "reward": (
        '''
@component("reward")
def NAME(rows):
    """Return whether the last word of a completion is the answer, for each row."""
    last = [(row["completion"].split() or [""])[-1] for row in rows]
    return [{"value": float(word == row["answer"]), "correct": word == row["answer"]} for word, row in zip(last, rows)]
''',
        """
    rows = [{"completion": "so it is 2", "answer": "2"}, {"completion": "", "answer": "2"}]
    assert [each["value"] for each in NAME(rows)] == [1.0, 0.0]
""",
    ),
    "shape": (
        '''
@component("shape", needs=("reward", "length"))
def NAME(rows: Rows, *, max_tokens: Annotated[int, Ge(1)] = 512):
    """Learn from completions of at most `max_tokens` tokens, as they are rewarded.

    Args:
        max_tokens: Longest completion that is learned from.
    """
    return {"taken": rows["length"] <= max_tokens, "reason": f"more than {max_tokens} tokens"}
''',
        """
    rows = Rows({"reward": np.array([1.0, 0.0]), "length": np.array([2, 9])})
    assert NAME(rows, max_tokens=4)["taken"].tolist() == [True, False]
""",
    ),
    "advantage": (
        '''
@component("advantage", needs=("reward", "group"), compares_group=True)
def NAME(rows: Rows):
    """Return A_i = r_i - mean(r) within the group, (N,); 0 for a row without a reward."""
    reward = rows["reward"]
    return (reward - rows.by("group").mean(reward)).nan_to_num(0.0)
''',
        """
    rows = Rows({"reward": torch.tensor([1.0, 0.0, 0.0, 5.0]), "group": torch.tensor([0, 0, 0, 1])})
    assert torch.allclose(NAME(rows), torch.tensor([2.0, -1.0, -1.0, 0.0], dtype=torch.float64) / 3)
""",
    ),
    "loss": (
        '''
@component("loss", needs=("now.logp", "advantage"))
def NAME(rows: Rows):
    """Return L_t = -A_t log pi_t of each token, (M,), and metrics of the same shape."""
    logp = rows["now.logp"]
    return -logp * rows["advantage"], {"NAME_logp": logp.detach()}
''',
        """
    tokens = {"now.logp": torch.tensor([-1.0, -2.0]), "advantage": torch.tensor([0.5, -1.0])}
    loss, _ = NAME(Rows({}, tokens, torch.tensor([1, 1])))
    assert loss.tolist() == [0.5, -2.0]
""",
    ),
    "aggregation": (
        '''
@component("aggregation", needs=())
def NAME(rows: Rows):
    """Return 1 / number of tokens of the step, (M,): the loss of the step is the sum of coefficient times loss."""
    return torch.full(rows.row.shape, 1.0 / max(1, int(rows.mask.sum())))
''',
        """
    logp = torch.tensor([-1.0, -2.0, -4.0])
    columns = {"reward": torch.tensor([1.0, 0.0]), "group": torch.tensor([0, 0])}
    rows = Rows(columns, {"now.logp": logp, "sampler.logp": logp}, torch.tensor([2, 1]))
    assert torch.allclose(NAME(rows), torch.full((3,), 1 / 3))
""",
    ),
    "correction": (
        '''
@component("correction", needs=("old.logp", "sampler.logp"))
def NAME(rows: Rows, *, cap: Annotated[float, Gt(0.0)] = 2.0):
    """Return min(p_trainer / p_sampler, cap) of each token, (M,), and a metric of the weights.

    Args:
        cap: Largest weight.
    """
    weight = (rows["old.logp"] - rows["sampler.logp"]).exp().clamp(max=cap)
    return weight, {"NAME": weight}
''',
        """
    tokens = {"old.logp": torch.tensor([-1.0, -1.0]), "sampler.logp": torch.tensor([-1.0, -9.0])}
    weight, _ = NAME(Rows({}, tokens, torch.tensor([2])), cap=1.5)
    assert weight.tolist() == [1.0, 1.5]
""",
    ),
    "weight": (
        '''
@component("weight", needs=("now.logp",))
def NAME(rows: Rows, *, frac: Annotated[float, Gt(0.0), Le(1.0)] = 0.5):
    """Return 1 for the least probable tokens of the step, 0 for the others, (M,), and a metric.

    Args:
        frac: Share of the tokens that weighs 1.
    """
    logp = rows["now.logp"]
    kept = (logp <= torch.quantile(logp[rows.mask], frac)).float()
    return kept, {"NAME": kept}
''',
        """
    logp = torch.tensor([-1.0, -2.0, -4.0])
    columns = {"reward": torch.tensor([1.0, 0.0]), "group": torch.tensor([0, 0])}
    rows = Rows(columns, {"now.logp": logp, "sampler.logp": logp}, torch.tensor([2, 1]))
    kept, _ = NAME(rows, frac=0.5)
    assert kept.tolist() == [0.0, 1.0, 1.0]
""",
    ),
    "optimizer": (
        '''
@component("optimizer", elementwise=True)
def NAME(parameters, update):
    """Return gradient descent at the learning rate of the update, without momentum."""
    return torch.optim.SGD(parameters, lr=update.lr, weight_decay=update.weight_decay)
''',
        """
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    weight.grad = torch.tensor([2.0])
    NAME([weight], SimpleNamespace(lr=0.25, weight_decay=0.0)).step()
    assert weight.tolist() == [0.5]
""",
    ),
    "schedule": (
        '''
@component("schedule")
def NAME(now: Progress, *, start: Annotated[float, Gt(0.0)] = 1e-4, rate: Annotated[float, Gt(0.0), Le(1.0)] = 0.5):
    """Return the number of a round: `start` in the first, and `rate` times the one before in each after it.

    Args:
        start: Number of the first round.
        rate: Factor from round to round.
    """
    return start * rate ** (now.round - 1)
''',
        """
    assert [NAME(Progress(round), start=8.0, rate=0.5) for round in (1, 2, 4)] == [8.0, 4.0, 1.0]
""",
    ),
}
"""By kind: the function, and the body of its test."""
_HEAD = 'what = "its effect in one line"\npaper = ""\ntrust = "guess"\ndeviates = ""\n\n'
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


def write_component(kind: str, name: str, folder: Path) -> list[Path]:
    """Write NAME.py, test_NAME.py and NAME.toml into a folder; UsageError for another kind or name, or a file there."""
    if kind not in KINDS:
        listed = f"it is one of {', '.join(KINDS)}"
        raise UsageError(f"there is no kind of component {kind!r}", hint=did_you_mean(kind, list(KINDS), listed))
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in sys.stdlib_module_names:
        hint = "take lower-case letters, digits and _, a letter first, and no word or module of Python's"
        raise UsageError(f"{name!r} cannot name a component", hint=hint)
    texts = _texts(kind, name)
    if there := [file for file in texts if (folder / file).exists()]:
        raise UsageError(f"{there[0]} is there already, and is not overwritten", hint="take another name")
    for file, text in texts.items():
        with (folder / file).open("x", encoding="utf-8") as opened:
            opened.write(text)
    return [folder / file for file in texts]


def _texts(kind: Kind, name: str) -> dict[str, str]:
    """The text of each file by its name."""
    function, test = TEMPLATES[kind]
    named = f'"{name}.py:{name}"'
    *sections, key = ["update", "lr"] if kind == "schedule" else SETTINGS[kind].removesuffix(".0").split(".")
    value = (
        f"{{ schedule = {named} }}" if kind == "schedule" else f"[{named}]" if SETTINGS[kind].endswith(".0") else named
    )
    section = f"[{sections[0]}]\n" if sections else ""
    texts = {
        f"{name}.py": f'"""The {kind} {name}."""\n\n{_imports(kind, function)}{function}',
        f"test_{name}.py": f'"""{name} against numbers by hand."""\n\n{_imports(kind, test)}'
        f"from {name} import {name}\n\n\ndef test_{name}() -> None:{test}",
        f"{name}.toml": f"{_HEAD}{section}{key} = {value}\n",
    }
    return {file: text.replace("NAME", name) for file, text in texts.items()}


def _imports(kind: Kind, text: str) -> str:
    """Return the imports of the names that a text uses: first Python's, then those of packages."""
    rows = (
        "gradus.components.rows"
        if kind in ("filter", "ranking", "sampler", "measure", "shape")
        else "gradus.models.objectives.rows"
    )
    groups: Sequence[Mapping[str, str]] = (
        {"from types": "SimpleNamespace", "from typing": "Annotated"},
        {
            "import numpy as np": "np",
            "import pyarrow as pa": "pa",
            "import torch": "torch",
            "from annotated_types": "Ge Gt Le",
            "from gradus.components": "component",
            f"from {rows}": "Rows",
            "from gradus.data.curation.results": "Draw selection",
            "from gradus.data.curation.round": "Round first_rows round_of",
            "from gradus.data.curation.tracked": "Tracked",
            "from gradus.models.measuring": "Model",
            "from gradus.data.schedules.progress": "Progress",
        },
    )
    words, found = set(re.findall(r"\w+", text)), ""
    for group in groups:
        used = {line: [name for name in names.split() if name in words] for line, names in group.items()}
        lines = [
            f"{line} import {', '.join(names)}" if "from" in line else line for line, names in used.items() if names
        ]
        found += "".join(f"{line}\n" for line in lines) + "\n" * bool(lines)
    return found
