"""Texts of token ids, by the tokenizer of a policy folder, without torch."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from gradus.data.errors import BadInputError, in_words

TOKENIZER = "tokenizer.json"


def tokenizer_of(folder: Path) -> Tokenizer:
    """Return the tokenizer of a folder; BadInputError if it has none that can be read."""
    path = folder / TOKENIZER if folder.is_dir() else folder
    if not path.is_file():
        raise BadInputError(f"{folder} has no {TOKENIZER}", hint="give the folder of the model that made the rollouts")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself
        raise BadInputError(f"{path} is no tokenizer: {in_words(error).message}") from None


def texts_of(tokenizer: Tokenizer, tokens: Sequence[Sequence[int]]) -> list[str]:
    """Return the texts of token ids, special tokens left out."""
    return tokenizer.decode_batch([list(ids) for ids in tokens], skip_special_tokens=True)
