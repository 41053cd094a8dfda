"""Right commands, and those with a name or a value without end in each place."""

from collections.abc import Callable, Mapping

LONG = "x" * 3000
VERY_LONG = "y" * 200_000
P = ("--problems", "good.jsonl")
PLAN = ("--plan", "plan.jsonl")
INPUTS: Mapping[str, tuple[str, ...]] = {
    "ingest": ("good.jsonl",),
    "hint": P,
    "curate": P,
    "rollout": (*PLAN, *P),
    "score": ("--rollouts", "rollouts.jsonl"),
    "update": ("--rollouts", "learnt.jsonl", "--scores", "scores.jsonl"),
    "warmstart": P,
}


def setting(verb: str, *texts: str) -> tuple[str, ...]:
    return (verb, *INPUTS[verb], *(word for text in texts for word in ("--set", text)))


TOO_LONG: Mapping[str, Callable[[str], tuple[str, ...]]] = {
    "ingest source": lambda text: ("ingest", text),
    "ingest --map": lambda text: ("ingest", "good.jsonl", "--map", text),
    "ingest --map pair": lambda text: ("ingest", "good.jsonl", "--map", f"{text}={text}"),
    "ingest --set": lambda text: setting("ingest", text),
    "ingest --set key": lambda text: setting("ingest", f"{text}=1"),
    "ingest --set value": lambda text: setting("ingest", f"limit={text}"),
    "ingest --set format": lambda text: setting("ingest", f"format={text}"),
    "hint": lambda text: setting("hint", f"strategy={text}"),
    "hint problems": lambda text: ("hint", "--problems", text),
    "curate filter": lambda text: ("curate", *P, "--filter", text),
    "curate filter key": lambda text: ("curate", *P, "--filter", f"pass_rate:{text}=1"),
    "curate filter value": lambda text: ("curate", *P, "--filter", f"pass_rate:low={text}"),
    "curate filter file": lambda text: ("curate", *P, "--filter", f"{text}.py:f"),
    "curate rank": lambda text: ("curate", *P, "--rank", text),
    "curate top": lambda text: ("curate", *P, "--top", text),
    "rollout policy": lambda text: ("rollout", *INPUTS["rollout"], "--policy", text),
    "rollout policy plus": lambda text: ("rollout", *INPUTS["rollout"], "--policy", f"{text}+{text}"),
    "rollout url": lambda text: ("rollout", *INPUTS["rollout"], "--set", f"server.url={text}"),
    "rollout template": lambda text: setting("rollout", f"prompt.template={text}"),
    "score reward": lambda text: ("score", *INPUTS["score"], "--reward", text),
    "score weight": lambda text: ("score", *INPUTS["score"], "--reward", f"math={text}"),
    "score reward file": lambda text: ("score", *INPUTS["score"], "--reward", f"{text}.py:f"),
    "score pattern": lambda text: setting("score", f'rewards=[{{name="format",pattern="({text}"}}]'),
    "train recipe": lambda text: ("train", text),
    "train file": lambda text: ("train", f"{text}.toml"),
    "train name": lambda text: ("train", "demo", "--set", f"name={text}"),
    "show": lambda text: ("show", text),
    "restore": lambda text: ("restore", text),
    "export": lambda text: ("export", text, "--to", "x"),
    "prune keep": lambda text: ("prune", "x", "--keep", text),
    "compare budget": lambda text: ("compare", "demo", "qwen2.5-7b-8gpu", "--budget", text),
    "serve webhook": lambda text: ("serve", "--notify", text),
    "a verb": lambda text: (text,),
    "an option": lambda text: ("ingest", "good.jsonl", f"--{text}"),
    "rerun stage": lambda text: ("rerun", "x", text),
}
"""A name or a value without end, where each may stand."""
