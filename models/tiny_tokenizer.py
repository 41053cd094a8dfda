"""The tokenizer of the bundled policy: characters, with the generator's constant sentence as one token."""

from tokenizers import Regex, Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

PHRASES = ("State the final answer to the following arithmetic problem: ", "#### ", " + ", " - ", " =")
CHARACTERS = "0123456789+-=\n "
PAD, END, UNKNOWN = "<pad>", "<end>", "<unknown>"


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of 23 tokens that AutoTokenizer loads; every character it does not know is one unknown token."""
    words = [PAD, END, UNKNOWN, *PHRASES, *CHARACTERS]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    escaped = [phrase.replace("+", r"\+") for phrase in PHRASES]
    tokenizer.pre_tokenizer = Split(Regex("|".join([*escaped, r"[\s\S]"])), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return loadable(tokenizer, 256)


def loadable(tokenizer: Tokenizer, context_tokens: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer that has PAD, END and UNKNOWN as one that AutoTokenizer loads."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=context_tokens,
    )
