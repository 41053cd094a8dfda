"""Make the bundled tasks and the policy that begins them anew: `python benchmarks/tasks/make.py FOLDER`.

40 minutes on two cores. `data/samples/KIND.parquet`, `KIND-heldout.parquet` and `data/samples/ascii` are what version 1
of this wrote. No problem of those tables is among the lessons of the policy.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from kinds import KINDS, Row, rows
from tokenizers import Regex, Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Split
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

import gradus
from gradus.models.policy import new_policy
from gradus.models.tiny_tokenizer import END, PAD, UNKNOWN, loadable

NUM_TRAINED, NUM_HELD_OUT, NUM_LESSONS = 240, 60, 8_000
"""Problems to train on, problems to evaluate with, and lessons of each kind."""
VOCABULARY, CONTEXT_TOKENS = 512, 320
PRINTABLE = ["\n", *map(chr, range(32, 127))]
SHAPE = {"width": 192, "layers": 5, "heads": 6}
LESSONS = {"steps": 2000, "decay_steps": 2200, "batch_rows": 64, "lr": 2e-3, "warmup_steps": 100}


def write(path: Path, found: list[Row]) -> Path:
    """Write rows as lines of JSON."""
    path.write_text("".join(json.dumps(each) + "\n" for each in found))
    return path


def tokenizer_of(texts: list[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of all printable ASCII: pairs that are merged within words, digits one by one."""
    tokenizer = Tokenizer(BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = Split(Regex(r"[0-9]| ?[A-Za-z]+|[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    special = [PAD, END, UNKNOWN]
    trainer = BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=PRINTABLE, limit_alphabet=len(PRINTABLE)
    )
    tokenizer.train_from_iterator(texts, trainer)
    return loadable(tokenizer, CONTEXT_TOKENS)


def drawn() -> tuple[dict[str, list[Row]], list[Row], set[str]]:
    """Return the problems by the name of their table, the lessons of the policy, and the questions of the problems."""
    known, lessons, tables = set[str](), list[Row](), dict[str, list[Row]]()
    for seed, kind in enumerate(KINDS):
        for part, count in enumerate((NUM_TRAINED, NUM_HELD_OUT)):
            rng = np.random.default_rng((1, seed, part))
            tables[(kind, f"{kind}-heldout")[part]] = rows(kind, count, rng, known)
    for seed, kind in enumerate(KINDS):
        lessons += rows(kind, NUM_LESSONS, np.random.default_rng((1, seed, 2)), known, lessons=True)
    return tables, lessons, known


def main() -> None:
    """Write the tables of problems, then train the policy."""
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    tables, lessons, _ = drawn()
    for name, problems in tables.items():
        path = write(folder / f"{name}.jsonl", problems)
        table = gradus.ingest(str(path), set={"answers": "optional"}).path
        shutil.copyfile(next(table.glob("part-*.parquet")), folder / f"{name}.parquet")
    columns = ("question", "answer", "solution", "domain")
    path = write(folder / "lessons.jsonl", [{name: each[name] for name in columns} for each in lessons])
    tokenizer = tokenizer_of([f"{each['question']}{each['solution']}" for each in lessons])
    begun = new_policy(tokenizer, **SHAPE, max_positions=CONTEXT_TOKENS, seed=0)
    begun.model.save_pretrained(folder / "begun")
    tokenizer.save_pretrained(folder / "begun")
    settings = [word for name, value in LESSONS.items() for word in ("--set", f"{name}={value}")]
    out = ("--set", "answers=optional", "--set", 'duplicates="keep"')
    gradus_at = [sys.executable, "-m", "gradus"]
    subprocess.run([*gradus_at, "ingest", str(path), *out, "--out", "lessons"], cwd=folder, check=True)
    command = [*gradus_at, "warmstart", "--problems", "lessons", "--policy", "begun", *settings, "--out", "ascii"]
    subprocess.run(command, cwd=folder, check=True)


if __name__ == "__main__":
    main()
