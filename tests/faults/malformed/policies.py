"""Folders that are no policy, though they were one: configurations, tokenizers, weights, adapters, and their parts."""

import json
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gradus.tasks.preflight.checks import SAMPLES
from tests.faults.malformed.program import Case

BUNDLED = SAMPLES / "policy"
CONFIG = json.loads((BUNDLED / "config.json").read_bytes())
ADAPTER: Mapping[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 2,
    "lora_alpha": 4,
    "bias": "none",
    "target_modules": ["q_proj"],
    "base_model_name_or_path": str(BUNDLED),
}
ROLLOUT = ("rollout", "--plan", "plan.jsonl", "--problems", "good.jsonl", "--policy", "odd")

Change = Callable[[Path], object]


def changed(change: Change) -> Change:
    """The bundled policy with a change."""

    def make(path: Path) -> None:
        shutil.copytree(BUNDLED, path)
        change(path)

    return make


def config(**values: object) -> Change:
    kept = {key: value for key, value in {**CONFIG, **values}.items() if value != "GONE"}
    return writes("config.json", json.dumps(kept))


def writes(name: str, content: str | bytes) -> Change:
    body = content.encode() if isinstance(content, str) else content
    return lambda path: (path / name).write_bytes(body)


def without(name: str) -> Change:
    return lambda path: (path / name).unlink()


def weights(of: Callable[[bytes], bytes]) -> Change:
    def change(path: Path) -> None:
        file = path / "model.safetensors"
        file.write_bytes(of(file.read_bytes()))

    return change


def header(of: Callable[[dict[str, Any]], object]) -> Change:
    """The weights with another header before the same numbers."""

    def rewritten(content: bytes) -> bytes:
        (length,) = struct.unpack("<Q", content[:8])
        body = json.dumps(of(json.loads(content[8 : 8 + length]))).encode()
        return struct.pack("<Q", len(body)) + body + content[8 + length :]

    return weights(rewritten)


def index(body: object) -> Change:
    def change(path: Path) -> None:
        (path / "model.safetensors").rename(path / "model-00001-of-00001.safetensors")
        (path / "model.safetensors.index.json").write_text(json.dumps(body))

    return change


def _first(found: dict[str, Any], **values: object) -> dict[str, Any]:
    name = next(key for key in found if key != "__metadata__")
    return {**found, name: {**found[name], **values}}


FOLDERS: Mapping[str, Change] = {
    "no config": without("config.json"),
    "no tokenizer": lambda path: [p.unlink() for p in path.glob("tokenizer*")],
    "no weights": without("model.safetensors"),
    "weights of another format": lambda path: (path / "model.safetensors").rename(path / "pytorch_model.bin"),
    "config empty": writes("config.json", b""),
    "config cut off": writes("config.json", json.dumps(CONFIG)[:50]),
    "config a list": writes("config.json", "[1]"),
    "config a text": writes("config.json", '"llama"'),
    "config null": writes("config.json", "null"),
    "config binary": writes("config.json", bytes(range(256))),
    "config UTF-16": writes("config.json", json.dumps(CONFIG).encode("utf-16")),
    "config deep": writes("config.json", "[" * 100_000),
    "config a folder": lambda path: ((path / "config.json").unlink(), (path / "config.json").mkdir()),
    "config brings code": config(auto_map={"AutoModelForCausalLM": "evil.Model"}),
    "no kind of model": config(model_type="GONE"),
    "kind unknown": config(model_type="nonesuch"),
    "kind a number": config(model_type=7),
    "kind a list": config(model_type=["llama"]),
    "kind null": config(model_type=None),
    "kind of an encoder": config(model_type="clip"),
    **{
        f"{key} = {str(value)[:20]}": config(**{key: value})
        for key, values in {
            "hidden_size": ("128", -1, 0, 64, 1.5, None, [128], {"a": 1}),
            "num_hidden_layers": ("four", -1, 5, 1.5, None, [4], 10**12),
            "num_attention_heads": ("4", 0, -1, 3, None),
            "num_key_value_heads": ("4", 3, 0),
            "vocab_size": ("23", -1, 0, 22, None, 10**12),
            "intermediate_size": ("384", -1, 383),
            "max_position_embeddings": ("256", -1, 0, 1.5),
            "hidden_act": ("nonesuch", 7, None),
            "dtype": ("float99", 7, ["float32"]),
            "rope_parameters": ("x", [1], {"rope_type": "nonesuch"}, {"rope_theta": "x", "rope_type": "default"}),
            "rms_norm_eps": ("small", None),
            "architectures": ("LlamaForCausalLM", 7),
            "quantization_config": ("x",),
        }.items()
        for value in values
    },
    "tokenizer empty": writes("tokenizer.json", b""),
    "tokenizer cut off": lambda path: writes("tokenizer.json", (path / "tokenizer.json").read_bytes()[:300])(path),
    "tokenizer a list": writes("tokenizer.json", "[]"),
    "tokenizer without model": writes("tokenizer.json", '{"version": "1.0"}'),
    "tokenizer of an unknown kind": writes("tokenizer.json", '{"version": "1.0", "model": {"type": "Nonesuch"}}'),
    "tokenizer binary": writes("tokenizer.json", bytes(range(256))),
    "tokenizer settings cut off": writes("tokenizer_config.json", '{"eos_token"'),
    "tokenizer settings a list": writes("tokenizer_config.json", "[]"),
    "tokenizer class a number": writes("tokenizer_config.json", '{"tokenizer_class": 7}'),
    "generation settings cut off": writes("generation_config.json", '{"eos'),
    "generation settings a list": writes("generation_config.json", "[]"),
    "weights empty": weights(lambda _: b""),
    "weights of seven bytes": weights(lambda content: content[:7]),
    "weights cut off": weights(lambda content: content[:-100]),
    "weights cut off in the header": weights(lambda content: content[:200]),
    "weights with more": weights(lambda content: content + b"more"),
    "weights random": weights(lambda _: bytes(range(256)) * 40),
    "weights a text": weights(lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3438104\n"),
    "weights with a huge header": weights(lambda content: struct.pack("<Q", 2**60) + content[8:]),
    "weights of a folder": lambda path: (without("model.safetensors")(path), (path / "model.safetensors").mkdir()),
    "header a list": header(lambda _: []),
    "header of no tensors": header(lambda _: {}),
    "header without shapes": header(lambda found: {key: {} for key in found}),
    "a tensor of an unknown format": header(lambda found: _first(found, dtype="F99")),
    "a tensor of another shape": header(lambda found: _first(found, shape=[1])),
    "a tensor beyond the end": header(lambda found: _first(found, data_offsets=[0, 2**40])),
    "a tensor before the beginning": header(lambda found: _first(found, data_offsets=[-8, 8])),
    "a tensor by another name": header(lambda found: {f"{key}x": value for key, value in found.items()}),
    "an index that is none": index([]),
    "an index without a map": index({"metadata": {}}),
    "an index of a map that is a list": index({"weight_map": ["a"]}),
    "an index of files that are not there": index({"weight_map": {"a": "model-00002-of-00002.safetensors"}}),
    "an index that leads elsewhere": index({"weight_map": {"a": "../../other/model.safetensors"}}),
    "an index that leads to a path": index({"weight_map": {"a": str(BUNDLED / "model.safetensors")}}),
    "an index of numbers": index({"weight_map": {"a": 1}}),
}
"""What is wrong with a policy."""


def adapter(**values: object) -> Change:
    """An adapter of all layers with other values in its configuration."""
    kept = {key: value for key, value in {**ADAPTER, **values}.items() if value != "GONE"}

    def make(path: Path) -> None:
        path.mkdir()
        (path / "adapter_config.json").write_text(json.dumps(kept))
        found, at = {}, 0
        for layer in range(CONFIG["num_hidden_layers"]):
            for side, shape in (("A", [2, 128]), ("B", [128, 2])):
                name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{side}.weight"
                found[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 1024]}
                at += 1024
        body = json.dumps(found).encode()
        (path / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(body)) + body + bytes(at))

    return make


def _adapter_file(name: str, content: bytes) -> Change:
    def make(path: Path) -> None:
        adapter()(path)
        (path / name).write_bytes(content)

    return make


ADAPTERS: Mapping[str, Change] = {
    **{
        f"{key} = {str(value)[:24]}": adapter(**{key: value})
        for key, values in {
            "r": ("2", 0, -1, 1.5, None, True, [2], 10**12),
            "lora_alpha": ("4", 0, None, True, [4]),
            "peft_type": ("NONESUCH", 7, None, "IA3", ["LORA"], "GONE"),
            "task_type": ("NONESUCH", 7),
            "target_modules": (7, [7], {"a": 1}, "[", ["nonesuch"]),
            "base_model_name_or_path": (7, "", None, ["x"], "nowhere", "../nowhere", {"a": 1}),
            "bias": ("much", 7),
            "use_dora": (True,),
            "layer_replication": ([[0, 1]],),
            "modules_to_save": (["lm_head"],),
            "rank_pattern": ("x", [1]),
            "alpha_pattern": ("x", [1], {"q_proj": "x"}, {"(": 1}),
            "init_lora_weights": ("pissa", [1]),
            "use_rslora": ("x",),
        }.items()
        for value in values
    },
    "no matrices": lambda path: (adapter()(path), (path / "adapter_model.safetensors").unlink()),
    "config cut off": _adapter_file("adapter_config.json", b'{"r": 2,'),
    "config a list": _adapter_file("adapter_config.json", b"[]"),
    "config binary": _adapter_file("adapter_config.json", bytes(range(256))),
    "config deep": _adapter_file("adapter_config.json", b"[" * 100_000),
    "matrices empty": _adapter_file("adapter_model.safetensors", b""),
    "matrices random": _adapter_file("adapter_model.safetensors", bytes(range(256))),
    "matrices of nothing": _adapter_file("adapter_model.safetensors", struct.pack("<Q", 2) + b"{}"),
}


LOADED = frozenset(
    {
        *("config brings code", "kind unknown", "kind of an encoder", "hidden_size = 64"),
        *("num_hidden_layers = 5", "num_attention_heads = 3", "num_key_value_heads = 3", "vocab_size = 22"),
        *("intermediate_size = 383", "hidden_act = nonesuch", "dtype = float99", "rms_norm_eps = small"),
        *("rope_parameters = {'rope_type': 'nones", "rope_parameters = {'rope_theta': 'x', "),
        *(
            "rms_norm_eps = None",
            "tokenizer of an unknown kind",
            "task_type = NONESUCH",
            "task_type = 7",
            "target_modules = ['nonesuch']",
        ),
        *("use_dora = True", "layer_replication = [[0, 1]]", "modules_to_save = ['lm_head']"),
        *("init_lora_weights = pissa", "init_lora_weights = [1]", "matrices of nothing"),
    }
)
"""What is found when the policy is loaded, a twentieth of a second each."""


def policy_cases(every: int = 1) -> Iterator[Case]:
    """Each folder to `rollout`, which loads it, and some to the other verbs that take a policy."""
    for kind, folders in (("policy", {what: changed(of) for what, of in FOLDERS.items()}), ("adapter", ADAPTERS)):
        found = [what for what in folders if what not in LOADED]
        loaded = [what for what in folders if what in LOADED]
        for what in (*found, *loaded[::every]):
            yield Case(f"{kind}: {what}", ROLLOUT, {"odd": folders[what]}, makes=what in LOADED)
    for what in ("no config", "config cut off", "weights cut off", "header a list", "an index that leads elsewhere"):
        files = {"odd": changed(FOLDERS[what])}
        for words in (
            ("evaluate", "--problems", "good.jsonl", "--policy", "odd"),
            ("evaluate", "--problems", "good.jsonl", "--against", "odd"),
            ("profile", "--problems", "good.jsonl", "--policy", "odd"),
            ("warmstart", "--problems", "good.jsonl", "--policy", "odd"),
            ("update", "--rollouts", "learnt.jsonl", "--scores", "scores.jsonl", "--policy", "odd"),
            ("train", "demo", "--set", "policy=odd"),
            ("import", "traces.jsonl", "--from", "open-instruct", "--policy", "odd"),
        ):
            yield Case(f"{words[0]} {words[-2]} {what}", words, files)
