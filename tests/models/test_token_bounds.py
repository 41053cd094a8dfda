"""Tokens that hold the characters of a text, counted a second way: by the bytes of each token."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gradus.components.rows import tokens_of
from gradus.models.token_bounds import token_bounds

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = [("a", "b"), ("Ġ", "ab"), ("Ã", "©"), ("a", "Ã"), ("ð", "Ł")]
END = "<|end|>"


def byte_level() -> PreTrainedTokenizerFast:
    """A tokenizer with a token for every byte, and a few of several bytes, whole characters or not."""
    vocabulary = {piece: number for number, piece in enumerate([*ALPHABET, *("".join(pair) for pair in MERGES)])}
    inner = Tokenizer(models.BPE(vocabulary, MERGES))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(END, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, clean_up_tokenization_spaces=False)


def words() -> PreTrainedTokenizerFast:
    """A tokenizer of words whose decoder drops the space before the first one."""
    inner = Tokenizer(models.WordLevel({"▁so": 0, "▁it": 1, "▁is": 2, "?": 3}, unk_token="?"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False)


BYTES = byte_level()
NAMES = BYTES.convert_ids_to_tokens(list(range(len(BYTES))))


def by_bytes(tokens: list[int], text: str) -> list[set[int]]:
    """The characters of which each token has a byte, for tokens that spell the text."""
    of_byte = [number for number, char in enumerate(text) for _ in char.encode()]
    found, at = [], 0
    for token in tokens:
        size = 0 if NAMES[token] == END else len(NAMES[token])
        found.append(set(of_byte[at : at + size]))
        at += size
    return found


def held(tokens: list[int], text: str) -> list[set[int]]:
    return [set(range(*pair)) for pair in zip(*token_bounds(BYTES, tokens, text), strict=True)]


def test_by_hand() -> None:
    # a+C3 | A9 | " ab" | end: the character é is held by two tokens, the end by none.
    tokens = [NAMES.index("aÃ"), NAMES.index("©"), NAMES.index("Ġab"), NAMES.index(END)]
    starts, ends = token_bounds(BYTES, tokens, "aé ab")
    assert (starts.tolist(), ends.tolist()) == ([0, 1, 2, 5], [2, 2, 5, 5])
    assert tokens_of(starts, ends, 0, 1) == (0, 1)
    assert tokens_of(starts, ends, 1, 2) == (0, 2)
    assert tokens_of(starts, ends, 2, 3) == (2, 3)
    assert tokens_of(starts, ends, 0, 5) == (0, 3)
    assert tokens_of(starts, ends, 3, 3)[0] == tokens_of(starts, ends, 3, 3)[1]


@pytest.mark.parametrize("text", ["é😀" * 90, "ab ab é" * 60 + "😀"])
def test_long_texts_are_as_their_bytes_say(text: str) -> None:
    tokens = [*BYTES(text)["input_ids"], NAMES.index(END)]
    assert held(tokens, text) == by_bytes(tokens, text)


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet="ab é😀\n字", max_size=150), st.data())
def test_any_tokens_of_a_text(text: str, data: st.DataObject) -> None:
    whole = BYTES(text)["input_ids"]
    cuts = data.draw(st.lists(st.booleans(), min_size=len(whole), max_size=len(whole)))
    tokens: list[int] = []
    for token, cut in zip(whole, cuts, strict=True):  # some in single bytes, as a sampler may choose them
        tokens += [NAMES.index(each) for each in NAMES[token]] if cut else [token]
    assert held(tokens, text) == by_bytes(tokens, text)


def test_a_text_that_ends_before_its_tokens() -> None:
    tokens = BYTES("ab ab é ab")["input_ids"]
    starts, ends = token_bounds(BYTES, tokens, "ab a")  # cut at a stop string
    assert (starts.tolist()[:3], ends.tolist()[:3]) == ([0, 2, 4], [2, 4, 4])
    assert (ends[2:] - starts[2:]).sum() == 0
    assert token_bounds(BYTES, tokens[:4], str(BYTES.decode(tokens[:4])))[1].max() == len(BYTES.decode(tokens[:4]))


def test_a_decoder_that_drops_the_first_space() -> None:
    tokenizer, tokens = words(), [0, 1, 2] * 50
    text = str(tokenizer.decode(tokens))
    starts, ends = token_bounds(tokenizer, tokens, text)
    assert text.startswith("so it is so")
    assert [text[a:b] for a, b in zip(starts, ends, strict=True)] == ["so", *[" it", " is", " so"] * 49, " it", " is"]


def test_no_tokens() -> None:
    starts, ends = token_bounds(BYTES, [], "")
    assert len(starts) == len(ends) == 0
    assert tokens_of(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, 0) == (0, 0)
