"""Stop strings found in last tokens, against the text of all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from gradus.models.engines.sampling import cut_behind, stopped, tail_tokens


def byte_level() -> PreTrainedTokenizerFast:
    """A token for each byte, and one of two: characters of several bytes are several tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate([*letters, "ab"])}
    tokenizer = Tokenizer(BPE(vocabulary, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
    made.add_special_tokens({"additional_special_tokens": ["<s>"]})
    return made


TOKENIZER = byte_level()
TEXTS = st.text(alphabet="ab \né𝄞<", max_size=30)


@given(text=TEXTS, stop=st.lists(TEXTS.filter(bool).map(lambda text: text[:4]), min_size=1, max_size=3))
def test_the_token_that_completes_a_stop_string_is_found(text: str, stop: list[str]) -> None:
    tokens = TOKENIZER(text * 3 + "<s>" + text)["input_ids"]
    wholes = [TOKENIZER.decode(tokens[:end], skip_special_tokens=True) for end in range(1, len(tokens) + 1)]
    expected = next((end for end, whole in enumerate(wholes, 1) if any(s in whole for s in stop)), None)
    size = tail_tokens(stop)
    found = next((end for end in range(1, len(tokens) + 1) if looked_at(tokens[max(0, end - size) : end], stop)), None)
    assert found == expected


def looked_at(tail: list[int], stop: list[str]) -> bool:
    return stopped(TOKENIZER, [tail], [stop])[0]


@pytest.mark.parametrize(
    ("stop", "kept"),
    [(["</a>"], "7</a>"), (["\n", "</a>"], "7</a>"), (["a>\n", "</"], "7</"), (["8"], "7</a>\n"), ([], "7</a>\n")],
)
def test_a_text_ends_behind_the_stop_string_that_ends_first(stop: list[str], kept: str) -> None:
    assert cut_behind("7</a>\n", stop) == kept
