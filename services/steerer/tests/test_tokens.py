"""Tokenizers: slow ones delay nobody else, and those without a template for chats say so."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from poolbench.config import ModelRef
from poolbench.errors import CellError, InputError, ModelError
from poolbench_steerer import tokens


def test_slow_loads_delay_neither_loaded_tokenizers_nor_other_threads(
    model_ref: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, gate = tokens.tokens_of(model_ref), threading.Event()

    def stuck(model: ModelRef, *_: bool) -> tokens.Tokens:
        gate.wait()
        raise ModelError(f"no {model.id}")

    async def ask() -> list[Any]:
        slow = [
            asyncio.create_task(tokens.loaded_tokens(ModelRef(f"some/{number}", f"some/{number}")))
            for number in range(40)
        ]
        await asyncio.sleep(0)
        assert await tokens.loaded_tokens(model_ref) is loaded
        assert len(await asyncio.to_thread(loaded.encode, "The river")) > 1
        assert not any(task.done() for task in slow)
        gate.set()
        return await asyncio.gather(*slow, return_exceptions=True)

    monkeypatch.setattr(tokens, "_load", stuck)
    assert {type(answer) for answer in asyncio.run(ask())} == {ModelError}
    assert tokens.tokens_of(model_ref) is loaded


def test_a_model_without_a_template_says_what_to_do(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = None
    with pytest.raises(CellError, match="needs a chat model, and this one has no chat template") as caught:
        tokens.Tokens(tokenizer).encode_reply("Be brief.", "The tide")
    assert caught.value.status == "not_implemented"
    tokenizer.chat_template = "{{ messages[0].content }}{{ nothing.at.all }}"
    with pytest.raises(InputError, match="refuses these messages: 'nothing' is undefined"):
        tokens.Tokens(tokenizer).encode_reply("Be brief.", "The tide")
