"""Vectors by hand through a real model and tokenizer, padded on either side.

The model's blocks add nothing and attend uniformly, so the state of a token is its row of the embedding.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from poolbench.contracts.tables import vector_matrix
from poolbench.pooling import Words
from poolbench.pooling.batch import Request
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts, Reading
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
