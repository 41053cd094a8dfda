"""Words of commands that mean nothing: settings, recipes, rewards, names, queries, addresses and variables."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from gradus.flows.recipe.reading import RECIPES
from tests.faults.malformed.number_settings import numbers
from tests.faults.malformed.program import INPUTS, Case, Content, P

DEMO = (RECIPES / "demo.toml").read_text()
LONG, VERY_LONG = "x" * 3000, "y" * 200_000
WORDS: Mapping[str, str] = {
    "ingest @ --map": "question|=|banana=question|question=banana|TEXT|TEXT=TEXT",
    "ingest @ --map question=answer --map": "question=solution",
    "ingest @ --set": (
        "columns.banana=question|columns.question=7|columns=question|format=csv|format=7|limit=true|limit|=1"
        "|nonesuch=1|a.b.c.d=1|limit={a=1}|limit=[1]|limit=2020-01-01|split=7|TEXT|TEXT=1|limit=TEXT|format=TEXT"
    ),
    "score @ --map": "banana=completion|completion=banana",
    "import verl.jsonl --from verl --map": "banana=input|input=banana",
    "ingest": "|/dev/null|reasoning-gym:|someone/something|a\0b|TEXT",
    "ingest reasoning-gym:chain_sum --set": "generator.seed=true",
    "ingest @ --out": "good.jsonl/x.parquet",
    "ingest @ --set limit=1 --set": "limit.x=1",
    "ingest @": "--nonesuch|good.jsonl|--TEXT",
    "": "ingest|nonesuch|--nonesuch|TEXT",
    "hint @ --set": (
        "strategy=nonesuch|strategy=7|fractions=[2]|fractions=[0]|fractions=[true]|fractions=0.5|strategy=TEXT"
    ),
    "hint --problems": "plan/00000000000000000000000000000000|problems/0000|bundled:nonesuch|TEXT",
    "curate @ --filter": (
        "nonesuch||pass_rate:low|pass_rate:nonesuch=1|pass_rate:low=true|pass_rate:low=much|pass_rate:low=[1]"
        "|pass_rate:low=2|pass_rate:low=0.9,high=0.1|pass_rate:low=nan|length:max_chars=true|nowhere.py:f"
        "|mine.py:nonesuch|math|TEXT|pass_rate:TEXT=1|pass_rate:low=TEXT|TEXT.py:f"
    ),
    "curate @ --rank": "nonesuch|:|variance:nonesuch=1|nowhere.py:f|TEXT",
    "curate @ --sampler": "nonesuch|variance:explore=true",
    "curate @ --top": "-1|1000000000000|TEXT",
    "curate @ --draw": "1.5",
    "curate @ --seed": "1e3|18446744073709551616",
    "curate @ --set": "filters.7.name=x",
    "rollout @ --engine": "nonesuch",
    "rollout @ --set": (
        'stop=[""]|stop=["a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a"]'
        "|stop=[1]|prompt.template=no|prompt.template={nonesuch} {question}|dtype=float99|device=tpu|top_p=0"
        "|top_p=1.5|ray.address=nowhere|ray.address=host:99999|server.api_key_variable=a b|server.url=TEXT"
        "|prompt.template=TEXT"
    ),
    "rollout @ --policy": (
        "nowhere|bundled+bundled|checkpoints/00000000000000000000000000000000/ema|good.jsonl||TEXT|TEXT+TEXT"
    ),
    "score @ --reward": "nonesuch||math=heavy|math=nan|math=1e400|=1|TEXT|math=TEXT|TEXT.py:f",
    "score @ --set": (
        'rewards=math|rewards=[]|rewards=[7]|rewards=[{name="math",decides=true},{name="exact",decides=true}]'
        '|rewards=[{name="math",weight=true}]|rewards=[{name="math",decides=1}]|correct_at=true'
        '|rewards=[{name="format",pattern="("}]|rewards=[{name="math",nonesuch=1}]'
        '|rewards=[{name="format",pattern="(TEXT"}]'
    ),
    "score @ --problems": "rollouts/00000000000000000000000000000000",
    "update @ --set": (
        'loss=nonesuch|loss={name="clip",clip_high=true}|loss={name="clip",clip_high="x"}|advantage=7'
        '|optimizer=Nonesuch|optimizer={name="sgd",nonesuch=1}|betas=[0.9]|betas=[0.9,1.0]|betas=[true,false]'
        "|kl_coef=0.1|loss=distil|lora={rank=0}|lora={rank=true}|lora={rank=1000000000000}|lora={targets=[]}"
        '|origin_losses=[{origin="own",loss="sft"}]|launch={hosts=2}|launch={hosts=2,rendezvous="nowhere"}'
        '|launch={hosts=2,rendezvous="host:99999"}|launch={hosts=2,rendezvous="host:0"}'
    ),
    "warmstart @ --set width=128 --set": "heads=7",
    "warmstart @ --set": "device=7",
    "evaluate --problems good.jsonl --set": "ks=[0]|ks=[]|ks=[true]|ks=all|confidence=1|suite=7|rollout.nonesuch=1",
    "evaluate --problems good.jsonl -n 2 --set": "ks=[4]",
    "evaluate --problems good.jsonl -n": "0|1000000000000",
    "evaluate --problems good.jsonl --temperature": "-1|nan|1e9",
    "evaluate --problems good.jsonl --max-tokens": "1000000000000",
    "evaluate --problems good.jsonl --engine": "7",
    "evaluate --problems good.jsonl --device": "tpu",
    "profile --problems good.jsonl -n": "1000000000000|many",
    "profile --problems good.jsonl --set": "max_unjudged_frac=true",
    "profile --problems good.jsonl --reward": "format",
    "import verl.jsonl --from": "nonesuch|trl",
    "import traces.jsonl --from open-instruct --temperature": "0",
    "import traces.jsonl --from open-instruct --policy bundled --temperature": "nan",
    "import traces.jsonl --from": "open-instruct",
    "import traces.jsonl --from open-instruct --tokenizer": ".",
    "import . --from": "trl",
    "export nonesuch --to": "x",
    "export nonesuch --as nonesuch --to": "x",
    "export checkpoints/00000000000000000000000000000000 --to": "x",
    "export checkpoints/zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz --to": "x",
    "export checkpoints/00000000000000000000000000000000 --to x --base": " ",
    "prune nonesuch --keep": "nonesuch|last=0|last=many",
    "restore": "nonesuch|rollouts/00000000000000000000000000000000|TEXT",
    "show": "nonesuch||../..|TEXT",
    "why nonesuch": "nonesuch",
    "report": "nonesuch",
    "sync": "",
    "join ../x --wait-s": "0",
    "join x --wait-s": "-1",
    "rerun nonesuch": "score",
    "sql": (
        "|selec 1|select * from nonesuch|select nonesuch from samples|select cast('x' as int)|select nonesuch(1)"
        "|select 1; select 2|create table x (a int)|drop view samples|copy (select 1) to 'x.csv'"
        "|select * from read_csv('/etc/passwd')|attach 'x.db'|install httpfs|-- nothing|select TEXT|select 'TEXT"
    ),
    "sql values(1) --limit": "-1",
    "sql values(1) --run": "TEXT",
    "compare demo --budget rounds=1 --seeds": "1",
    "compare demo qwen2.5-7b-8gpu --budget": "nonesuch=1|rounds=1e15|TEXT",
    "compare demo qwen2.5-7b-8gpu --budget rounds=1 --seeds": "0",
    "compare demo qwen2.5-7b-8gpu --budget rounds=1 --plot": "x.gif",
    "compare nonesuch": "other",
    "ui --prefect-port": "99999",
    "serve --notify": "nowhere|http://|http://host:99999|file:///etc/passwd|TEXT",
    "train": "|nonesuch|dmo|TEXT|TEXT.toml",
    "train demo --overlap": "2",
    "train demo --rounds": "1000000000000",
    "train demo --run": "../x|a\nb|TEXT",
    "train demo --engine": "nonesuch",
    "train demo --set": (
        "seed=true|rounds=true|escalate=[true]|escalate=[1000000000000]|evaluate.nonesuch=1|problems=nowhere"
        "|policy=nowhere|ingest.columns.banana=question|name=TEXT"
    ),
    "export TEXT --to": "x",
    "prune x --keep": "TEXT",
    "rerun x": "TEXT",
}
"""Last words of commands by the words before them: @ stands for a verb's inputs, TEXT for a name without end."""
ADDRESSES = (
    "nowhere",
    "http://",
    "http:///v1",
    "ftp://host/v1",
    "http://host:99999",
    "http://host:port",
    "http://[::1",
)
RECIPE_FILES: Mapping[str, Content] = {
    "empty": b"",
    "binary": bytes(range(256)),
    "Latin-1": "name = 'b\xe4h'".encode("latin-1"),
    "UTF-16": DEMO.encode("utf-16"),
    "NUL": b"\0" * 100,
    "not TOML": b"[[[",
    "a key twice": b"name = 'x'\nname = 'y'\n",
    "deep": b"a = " + b"[" * 50_000,
    "JSON": b'{"name": "x"}',
    "no name": b"rounds = 1\n",
    "a long line": b"x" * 1_000_000,
    "a long key": b"x" * 100_000 + b" = 1\n",
    "a long value": f"name = '{VERY_LONG}'\n".encode(),
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
    "a table for a text": b"[name]\nx = 1\n",
    "a list for a table": b"name = 'x'\nupdate = []\n",
    "a text for a table": b"name = 'x'\nupdate = 'x'\n",
    "a date": b"name = 2020-01-01\n",
    "a date for a number": b"name = 'x'\nrounds = 2020-01-01\n",
    "an infinite number": b"name = 'x'\n[update]\nlr = inf\n",
    "no number": b"name = 'x'\n[update]\nlr = nan\n",
    "a huge number": b"name = 'x'\nrounds = " + b"9" * 5000 + b"\n",
    "guards": b"name = 'x'\n[[guards]]\nmetric = 'nonesuch'\nmin = 1\n",
    "guards without limits": b"name = 'x'\n[[guards]]\nmetric = 'policy/entropy'\n",
    "guards true": b"name = 'x'\n[[guards]]\nmetric = 'policy/entropy'\nmin = true\n",
    "overrides of nothing": b"name = 'x'\n[[overrides]]\nstage = 'nonesuch'\n",
    "overrides true": b"name = 'x'\n[[overrides]]\nstage = 'update'\nchanges = { epochs = true }\n",
    "overrides of a round": b"name = 'x'\n[[overrides]]\nstage = 'update'\nround = true\nchanges = { epochs = 2 }\n",
    "suites twice": b"name = 'x'\n[[evaluate.suites]]\nname = 'a'\n[[evaluate.suites]]\nname = 'a'\n",
    "a suite's name": b"name = 'x'\n[[evaluate.suites]]\nname = '../a'\n",
    "a suite's address": b"name = 'x'\n[evaluate]\nselect = 7\n",
    "every true": b"name = 'x'\n[evaluate]\nevery = true\n",
}
REWARD_FILES: Mapping[str, tuple[str, Content]] = {
    "no file": ("nowhere.py:judge", b""),
    "no function": ("odd.py:nonesuch", b"def judge(rows):\n    return []\n"),
    "no name": ("odd.py:", b"def judge(rows):\n    return []\n"),
    "syntax": ("odd.py:judge", b"def judge(rows:\n"),
    "binary": ("odd.py:judge", bytes(range(256))),
    "NUL": ("odd.py:judge", b"def judge(rows):\n    return '\0'\n"),
    "empty": ("odd.py:judge", b""),
    "a number": ("odd.py:judge", b"judge = 7\n"),
    "a folder": ("odd.py:judge", Path.mkdir),
    "no Python": ("odd.txt:judge", b"def judge(rows):\n    return []\n"),
    "a module": ("odd.judge", b""),
    "a kind": ("odd.py:judge", b"@component('nonesuch')\ndef judge(rows):\n    return []\n"),
    "another kind": ("odd.py:judge", b"@component('filter')\ndef judge(rows):\n    return []\n"),
    "settings": ("odd.py:judge", b"def judge(rows, *, low):\n    return []\n"),
    "settings of a type": ("odd.py:judge", b"def judge(rows, *, low: object = 1):\n    return []\n"),
    "deep": ("odd.py:judge", b"x = " + b"(" * 5000),
}
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "GRADUS_SERVER_IDLE_S": ("soon", "-1", "nan", "inf", "true", LONG),
    "GRADUS_STAGE_LIMIT_S": ("x", "-1", "1e400"),
    "GRADUS_TRACES_PER_ROUND": ("x", "-1"),
    "GRADUS_TRACKING_PATIENCE_S": ("x",),
    "GRADUS_MEMORY_GB": ("x", "-1", "0", "0.01", "nan"),
    "GRADUS_CPU_PRICE": ("x", "-1"),
    "GRADUS_GPU_PRICE": ("free", "inf"),
    "GRADUS_REPORT": ("x", LONG),
    "GRADUS_GPU_TURNS": ("x", "1"),
    "GRADUS_HOME": ("good.jsonl", "good.jsonl/x", LONG),
    "MLFLOW_TRACKING_URI": (*ADDRESSES, "nonesuch://host", LONG),
    "PREFECT_API_URL": (*ADDRESSES, LONG),
}


def commands() -> Iterator[tuple[str, ...]]:
    """Yield the commands of the table."""
    for before, last in WORDS.items():
        words = [part for word in before.split() for part in (INPUTS[before.split()[0]] if word == "@" else (word,))]
        yield from ((*words, word) for word in last.split("|"))


def setting(verb: str, text: str) -> tuple[str, ...]:
    return (verb, *INPUTS[verb], "--set", text)


def word_cases(every: int = 1) -> Iterator[Case]:
    """All of them."""
    yield from list(numbers())[::every]
    for words in (*commands(), ("ingest", "\x1b[31m" * 100), ("sql", "select " + "(" * 2000 + "1" + ")" * 2000)):
        name = " ".join(words)[:100]
        if "TEXT" not in name:
            yield Case(name, words)
            continue
        for text in (LONG, VERY_LONG) if every == 1 else (VERY_LONG,):
            yield Case(f"{name}, {len(text)} characters", tuple(word.replace("TEXT", text) for word in words))
    for address in ADDRESSES:
        for key in ("server.url", "rollout.server.url"):
            words = ("train", "demo") if key.startswith("rollout") else ("rollout", *INPUTS["rollout"])
            yield Case(f"{words[0]} {key} = {address}", (*words, "--set", f"{key}={address}"))
        yield Case(f"serve GRADUS_NOTIFY_URL = {address}", ("serve",), env={"GRADUS_NOTIFY_URL": address})
    for what, content in RECIPE_FILES.items():
        yield Case(f"recipe: {what}", ("train", "odd.toml"), {"odd.toml": content})
    for what, (name, content) in REWARD_FILES.items():
        file = {name.partition(":")[0]: content} if what not in ("no file", "a module") else {}
        yield Case(f"reward: {what}", ("score", *INPUTS["score"], "--reward", name), file)
    for name, values in VARIABLES.items():
        for value in values:
            yield Case(f"{name} = {value[:30]}", ("ingest", "good.jsonl"), env={name: value})


def good_words() -> Iterator[Case]:
    """Words that are right, next to those that are not."""
    for text in ("limit=1", "strict=true", "strict=yes", "limit=1_000", "columns.question=question"):
        yield Case(f"good: ingest {text}", setting("ingest", text))
    for text in ("top_p=.5", "stop=['x']", "server.url=https://host/v1", "ray.address=host:6379", "flush_s=1"):
        yield Case(f"good: rollout {text}", setting("rollout", text))
    for text in ("lr=.5", "betas=[0,0.5]", "max_kl=1", 'launch={hosts=1,rendezvous="host:29400"}', "lora={rank=1}"):
        yield Case(f"good: update {text}", setting("update", text))
    for words in (("--filter", "pass_rate:low=0,high=1"), ("--rank", "variance"), ("--top", "1"), ("--draw", "1")):
        yield Case(f"good: curate {words}", ("curate", *P, *words))
    for words in (("--reward", "math=1"), ("--reward", "mine.py:judge=0.5"), ("--map", "completion=answer")):
        yield Case(f"good: score {words}", ("score", *INPUTS["score"], *words))
    for name, value in (("MLFLOW_TRACKING_URI", "sqlite:///x.db"), ("PREFECT_API_URL", "http://127.0.0.1:4200/api")):
        yield Case(f"good: {name}", ("ingest", "good.jsonl"), env={name: value})
    yield Case("good: ingest --map", ("ingest", "good.jsonl", "--map", "answer=solution"))
    yield Case("good: import --map", ("import", "verl.jsonl", "--from", "verl", "--map", "input=output"))
    yield Case("good: recipe", ("train", "odd.toml"), {"odd.toml": DEMO.encode("utf-8-sig")})
    yield Case("good: sql", ("sql", "select 1"))
