"""The tokens of an answer: their bytes make its text."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from poolbench_steerer.completions.names import TokenNames
from poolbench_steerer.tokens import Tokens


def byte_level() -> tuple[Tokens, list[int]]:
    tokenizer = Tokenizer(models.BPE(vocab={**_letters(), "Ġa": 256}, merges=[("Ġ", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _tokens(tokenizer)


def sentencepiece() -> tuple[Tokens, list[int]]:
    pieces = {"<unk>": 0, "▁": 1, "▁a": 2, "a": 300}
    pieces |= {f"<0x{byte:02X}>": byte + 3 for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _tokens(tokenizer)


def _letters() -> dict[str, int]:
    return {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def _tokens(tokenizer: Tokenizer) -> tuple[Tokens, list[int]]:
    tokens = Tokens(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    return tokens, list(tokens.encode_plain(TEXT))


TEXT = " a \N{GRINNING FACE}é a"


@pytest.mark.parametrize("kind", [byte_level, sentencepiece])
def test_bytes_of_tokens_make_the_text_also_where_a_token_is_part_of_a_character(kind: Any):
    tokens, ids = kind()
    assert any("\ufffd" in tokens.decode([token]) for token in ids)
    content = [{"token": f"token_id:{token}", "bytes": None, "top_logprobs": []} for token in ids]
    TokenNames(tokens).name({"index": 0, "logprobs": {"content": content}})
    assert b"".join(bytes(token["bytes"]) for token in content).decode().strip() == TEXT.strip()
    partial = [token for token in content if token["token"].startswith("token_id:")]
    assert len(partial) == 4 + 2 and all(len(token["bytes"]) == 1 for token in partial)


def test_tokens_of_a_stream_have_places_in_the_text_and_the_likeliest_of_one_name_is_kept():
    tokens, ids = byte_level()
    names, found = TokenNames(tokens), []
    for token in ids:
        logprobs = {"tokens": [f"token_id:{token}"], "text_offset": [0], "top_logprobs": [None]}
        names.name({"index": 0, "logprobs": logprobs})
        found += logprobs["text_offset"]
    assert found[0] == 0 and max(found) < len(TEXT) and found == sorted(found)
    step = {f"token_id:{ids[0]}": -0.5, f"token_id:{ids[-1]}": -1.0}
    assert ids[0] == ids[-1] or len(step) == 2
    logprobs = {"tokens": [], "text_offset": [], "top_logprobs": [step]}
    names.name({"index": 1, "logprobs": logprobs})
    assert max(logprobs["top_logprobs"][0].values()) == max(step.values())
