"""The tokens of a named tokenizer."""

from pathlib import Path
from typing import Any

from poolbench.errors import ConfigError
from poolbench.texts import count_words
from poolbench_corpora.near import TokenCounter

WORDS = "words"
#: The tokenizer of the PoolBench card.
CARD_TOKENIZER = "meta-llama/Llama-3.1-8B"


def token_counter(name: str) -> TokenCounter:
    """Return a function that counts the tokens of a text, without special tokens.

    Args:
        name: A folder with `tokenizer.json`, a model of the hub, or `words` for words and punctuation marks.

    Raises:
        ConfigError: The tokenizer cannot be had.
    """
    if name == WORDS:
        return count_words
    tokenizer = _load(name)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def _load(name: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ConfigError(f"--tokenizer {name} needs the library `tokenizers`: pip install it, or use words") from None
    path = Path(name).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        return Tokenizer.from_file(str(path)) if path.is_file() else Tokenizer.from_pretrained(name)
    except Exception as error:  # the library raises plain exceptions
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        raise ConfigError(
            f"tokenizer {name} cannot be had ({reason}): accept its terms on the hub and set HF_TOKEN, or name another "
            f"with --tokenizer (a folder with tokenizer.json, a model of the hub, or `{WORDS}`)"
        ) from None
