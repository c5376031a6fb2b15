"""Vectors by hand, padded on either side; alignment of offsets; agreement with sentence-transformers."""

from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling
from services.extractor.tests.conftest import TEXTS
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from poolbench.contracts.tables import vector_matrix
from poolbench.pooling import Words
from poolbench.pooling.batch import Request
from poolbench.pooling.context import first_tokens_of_words, tokens_of_words
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts, Reading
from poolbench_extractor.encoder import PoolingEncoder
from poolbench_extractor.models.decoder import Decoder, wrap_decoder

TEXT, LONGER = "The cat sat down . Dogs ran", "ran ran Dogs . down down down sat The cat cat cat"
STATES = {"<s>": (9, 9), "The": (1, 0), "cat": (0, 2), "sat": (3, 4), "down": (-1, 0), ".": (2, 2), "Dogs": (0, -2)}


STATES |= {"ran": (6, 8), "</s>": (50, -50)}


WORDS = Words(
    start=np.array([0, 4, 8, 12, 17, 19, 24]), end=np.array([3, 7, 11, 16, 18, 23, 27]),
    upos=["DET", "NOUN", "VERB", "ADV", "PUNCT", "NOUN", "VERB"], head=[1, 2, 2, 2, 2, 6, 2],
    dep=["det", "nsubj", "root", "advmod", "punct", "nsubj", "conj"],
    lemma=["the", "cat", "sit", "down", ".", "dog", "run"], entity=["", "LOC", "", "", "", "LOC", ""],
    sentence=np.array([0, 0, 0, 0, 0, 1, 1]), clause=np.array([0, 0, 0, 0, 0, 1, 1]),
    keyword=np.array([False, True, False, False, False, False, True]),
)  # fmt: skip
MEAN = [11 / 7, 2]
EXPECTED = {
    "P1_last_token": ({}, [6, 8]),
    "P2_first_token": ({}, [9, 9]),
    "P3_first_content": ({}, [1, 0]),
    "A1_mean": ({}, MEAN),
    "A2_max": ({}, [6, 8]),
    "A3_min": ({}, [-1, -2]),
    "A5_median": ({}, [1, 2]),
    "W1_first_k": ({"k": 2}, [1 / 2, 1]),
    "W2_last_k": ({"k": 2}, [3, 3]),
    "W3_middle_k": ({"k": 3}, [4 / 3, 2]),
    "W4_hierarchical": ({"chunks": 2}, [(3 / 4 + 8 / 3) / 2, (6 / 4 + 8 / 3) / 2]),
    "S1_attention": ({}, MEAN),  # uniform attention
    "L1_pos_filtered": ({}, [8 / 5, 12 / 5]),
    "L2_dependency_rel": ({}, [6, 8]),
    "L3_entity": ({}, [0, 0]),
    "L5_keyword": ({}, [3, 5]),
    "L6_sentence": ({}, [(1 + 3) / 2, (8 / 5 + 3) / 2]),
    "L7_subword_root": ({}, [9 / 6, 12 / 6]),
    "L8_svo": ({}, [9 / 4, 12 / 4]),
    "L2_dependency_trigger": ({"triggers": ["run"]}, [3, 3]),
}


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    vocabulary = {word: index for index, word in enumerate(STATES)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    shape = {"hidden_size": 2, "intermediate_size": 2, "num_hidden_layers": 2, "num_attention_heads": 1}
    model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=len(STATES), **shape))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layers" in name and "norm" not in name:
                parameter.zero_()
        model.get_input_embeddings().weight.copy_(torch.tensor(list(STATES.values()), dtype=torch.float32))
    return wrap_decoder(model, fast)


@pytest.mark.parametrize("side", ["left", "right"])
def test_vectors_by_hand(decoder: Decoder, side: str) -> None:
    requests = [Request.of(strategy_id, params) for strategy_id, (params, _) in EXPECTED.items()]
    passages = PassageTexts(["p", "longer"], [TEXT, LONGER], {"p": WORDS, "longer": WORDS})
    tables = extract(decoder, passages, {1: requests}, reading=Reading(limits=BatchLimits(padding_side=side)))
    for strategy_id, (_, expected) in EXPECTED.items():
        found = vector_matrix(tables[f"{strategy_id}/1"]["vector"])[0]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=strategy_id)


SPLIT_TEXT = "Ana met 👩‍🔬 in Čačak  ;\n你好 naïve"
SPLIT_WORDS = ["Ana", "met", "👩‍🔬", "in", "Čačak", ";", "你好", "naïve"]
STARTS = np.array([SPLIT_TEXT.index(word) for word in SPLIT_WORDS])
ENDS = STARTS + np.array([len(word) for word in SPLIT_WORDS])


def byte_level(*, trim: bool, merges: int) -> Tokenizer:
    """Byte-level BPE as of GPT-2 and Llama 3; without merges every byte is a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=256 + merges, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([SPLIT_TEXT] * 3, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    return tokenizer


def metaspace() -> Tokenizer:
    """SentencePiece as of Llama 2, Mistral and Gemma: a mark for each space, bytes for unknown characters."""
    pieces = {"<unk>": 0, "▁": 1, **{f"<0x{byte:02X}>": byte + 2 for byte in range(256)}}
    for letter in "Anametiv":
        pieces.setdefault(letter, len(pieces))
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.ByteFallback()
    return tokenizer


TOKENIZERS = {
    "bytes, trimmed": byte_level(trim=True, merges=0),
    "bytes, untrimmed": byte_level(trim=False, merges=0),
    "merged, trimmed": byte_level(trim=True, merges=25),
    "merged, untrimmed": byte_level(trim=False, merges=25),
    "whole words": byte_level(trim=False, merges=200),
    "metaspace": metaspace(),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_token_lies_in_its_word_and_the_first_one_begins_it(name: str) -> None:
    encoding = TOKENIZERS[name].encode(SPLIT_TEXT)
    offsets = np.array(encoding.offsets)
    owners = [
        tokens_of_words(offsets, STARTS, ENDS, np.arange(len(SPLIT_WORDS)) == word) for word in range(len(SPLIT_WORDS))
    ]
    for (start, end), mine in zip(encoding.offsets, np.array(owners).T, strict=True):
        shown = SPLIT_TEXT[start:end].strip()
        assert mine.sum() == (1 if shown else 0), (SPLIT_TEXT[start:end], encoding.tokens)
        assert not shown or shown in SPLIT_WORDS[int(np.argmax(mine))]
    for word, mine in zip(SPLIT_WORDS, owners, strict=True):
        inside = offsets[mine]
        covered = {index for start, end in inside for index in range(start, end) if not SPLIT_TEXT[index].isspace()}
        assert "".join(SPLIT_TEXT[index] for index in sorted(covered)) == word
    encoding = TOKENIZERS[name].encode(SPLIT_TEXT)
    offsets = np.array(encoding.offsets)
    first = first_tokens_of_words(offsets, STARTS, ENDS)
    assert len(first) == len(SPLIT_WORDS)
    for position, start, end in zip(first, STARTS, ENDS, strict=True):
        assert offsets[position, 0] <= start < offsets[position, 1] <= end


MODES = {
    "cls": "P3_first_content",
    "max": "A2_max",
    "mean": "A1_mean",
    "mean_sqrt_len_tokens": "A10_mean_sqrt_len",
    "weightedmean": "A9_position_weighted",
    "lasttoken": "P1_last_token",
}


def last_block(decoder: Decoder, texts: list[str], side: str) -> tuple[Tensor, Tensor]:
    """States [B, T, D] after the last block, before the final norm, and the mask of real tokens [B, T].

    By the tokenizer's own padding and the model's whole forward pass: nothing of the extractor.
    """
    decoder.tokenizer.padding_side = side
    batch = decoder.tokenizer(texts, padding=True, return_tensors="pt", return_special_tokens_mask=True)
    visible = batch["attention_mask"]
    positions = (visible.cumsum(1) - 1).clamp(min=0)
    kept: dict[str, Any] = {}
    last = decoder.model.model.layers[-1]
    handle = last.register_forward_hook(lambda _module, _inputs, output: kept.update(states=output))
    with torch.inference_mode():
        decoder.model(input_ids=batch["input_ids"], attention_mask=visible, position_ids=positions)
    handle.remove()
    states = kept["states"][0] if isinstance(kept["states"], tuple) else kept["states"]
    starts = visible.argmax(dim=1)
    real = visible.clone()
    real[torch.arange(len(texts)), starts] = 0  # the BOS
    return states, real


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("mode", MODES)
def test_the_six_modes(demo: Decoder, mode: str, side: str) -> None:
    states_BTD, real_BT = last_block(demo, TEXTS, side)
    pooling = Pooling(states_BTD.shape[-1], pooling_mode=mode)
    oracle = pooling({"token_embeddings": states_BTD, "attention_mask": real_BT})["sentence_embedding"].numpy()
    ours = PoolingEncoder(demo, MODES[mode], -1).encode(TEXTS)
    assert np.abs(ours - oracle).max() <= 1e-5 * np.abs(oracle).max()


def test_the_first_token_with_its_bos(demo: Decoder) -> None:
    states_BTD, _ = last_block(demo, TEXTS, "right")
    pooling = Pooling(states_BTD.shape[-1], pooling_mode="cls")
    oracle = pooling({"token_embeddings": states_BTD})["sentence_embedding"].numpy()
    ours = PoolingEncoder(demo, "P2_first_token", -1).encode(TEXTS)
    assert np.abs(ours - oracle).max() <= 1e-5 * np.abs(oracle).max()
