"""A pretrained model behind the OpenAI client: its chat template, its likelihoods, and both when it is steered."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from recipes.steered_evaluation.pairs import answers_in, ask_harness, judge_pairs, run_harness
from transformers import AutoModelForCausalLM, AutoTokenizer

from poolbench.settings import SteererSettings
from poolbench_steerer.host import EngineHost

pytestmark = pytest.mark.lane(name="real-text")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
#: Each with the wrong form second, as BLiMP has them: agreement, anaphora, a reflexive, an irregular form.
PAIRS = (
    ("The sketch of those trucks has not hurt Alan.", "The sketch of those trucks have not hurt Alan."),
    ("Many girls insulted themselves.", "Many girls insulted herself."),
    ("Aaron broke the unicycle.", "Aaron broken the unicycle."),
)
LAYER = 15


@pytest.fixture(scope="module")
def address(smollm2: Path, serve: Any) -> Iterator[str]:
    config = SteererSettings(
        model=str(smollm2),
        max_model_len=512,
        max_num_seqs=16,
        kv_cache_gib=0.5,
        max_steered_requests=16,
        enforce_eager=True,
    )
    with contextlib.ExitStack() as stack:
        host = EngineHost(config)
        stack.callback(host.close)
        yield stack.enter_context(serve(host))


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2)


@torch.inference_mode()
def logprobs(reference: Any, ids: list[int]) -> np.ndarray:
    """Log-probabilities of each token but the first."""
    found = torch.log_softmax(reference(torch.tensor([ids])).logits[0, :-1].double(), dim=-1)
    return found.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


def likelihoods(client: openai.OpenAI, model: Path, texts: list[str], steering: Any = None) -> list[np.ndarray]:
    """Log-probabilities of prompts, as lm-evaluation-harness asks for them."""
    extra = {} if steering is None else {"steering": steering}
    made = client.completions.create(
        model=str(model), prompt=texts, max_tokens=1, logprobs=1, echo=True, temperature=0, extra_body=extra
    )
    return [np.array(choice.logprobs.token_logprobs[1:-1]) for choice in made.choices]


def test_a_score_ends_a_chat_and_spares_positions(client, smollm2, tokenizer, reference) -> None:
    """The direction is that of the states of two sentences. Scores, end and spared positions are those by hand."""
    states = [
        reference(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[LAYER + 1][0, -1]
        for text in ("Paris is beautiful.", "Two and two are four.")
    ]
    vector = (states[0] - states[1]).detach().tolist()
    reading = {"vector": vector, "layer": LAYER}
    options = {"model": str(smollm2), "messages": QUESTION, "temperature": 0.0, "max_tokens": 16}

    def ask(**extra: Any) -> Any:
        return client.chat.completions.create(extra_body=extra, logprobs=True, **options).choices[0]

    scores = ask(reading=reading).model_extra["reading"]["scores"]
    last = int(np.argmax(scores[1:])) + 1
    bound = (scores[last] + max(scores[:last])) / 2 if scores[last] > max(scores[:last]) else max(scores) - 1e-3
    end = next(number for number, score in enumerate(scores) if score > bound)
    stopped = ask(reading=reading | {"stop_when": {"above": bound}})
    assert len(stopped.logprobs.content) == end + 1 and stopped.finish_reason == "stop"
    assert stopped.model_extra["reading"]["stopped"]["value"] == pytest.approx(scores[end], abs=0.01)
    # Edits at a later layer change no score at this one, so the first decision is that of the unsteered text.
    edit = {"vector": vector, "layer": LAYER + 3, "strength": 0.1}
    spared = ask(steering=edit | {"where": {"read": reading, "above": max(scores) + 1}})
    assert spared.message.content == ask().message.content
    proof = spared.model_extra["steering_receipt"]
    assert proof["where"]["positions_spared"] == proof["positions_expected"] == len(spared.logprobs.content)
    some = ask(steering=edit | {"where": {"read": reading, "above": min(scores)}}).model_extra["steering_receipt"]
    assert some["positions_changed"] + some["where"]["positions_spared"] == some["positions_expected"]
    assert some["positions_changed"] > 0


@pytest.mark.lane(name="real-text")
def test_a_chat_answers_by_the_models_template_as_transformers_does(client, smollm2, tokenizer, reference) -> None:
    options = {"model": str(smollm2), "messages": QUESTION, "temperature": 0.0, "max_tokens": 16}
    (choice,) = client.chat.completions.create(logprobs=True, **options).choices
    assert "Paris" in choice.message.content
    talk = tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(talk)["input_ids"]
    made = reference.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)[0].tolist()
    assert tokenizer.decode(made[len(ids) :], skip_special_tokens=True) == choice.message.content
    found = [token.logprob for token in choice.logprobs.content]
    assert np.abs(np.array(found) - logprobs(reference, made)[len(ids) - 1 :]).max() <= 1e-4


def test_likelihoods_of_minimal_pairs_are_those_of_transformers(client, smollm2, tokenizer, reference) -> None:
    texts = [text for pair in PAIRS for text in pair]
    found = likelihoods(client, smollm2, texts)
    for text, values in zip(texts, found, strict=True):
        assert np.abs(values - logprobs(reference, tokenizer(text)["input_ids"])).max() <= 1e-4, text
    sums = [values.sum() for values in found]
    assert all(good > bad for good, bad in zip(sums[::2], sums[1::2], strict=True)), "it was trained on English"


@pytest.mark.lane(name="real-text")
def test_lm_evaluation_harness_gets_from_the_steerer_what_its_own_backend_computes(address, smollm2, tmp_path) -> None:
    """Log-likelihoods of completions, and the answer of a chat by the model's template."""
    backend = {"pretrained": smollm2, "dtype": "float32", "max_length": 512}
    served = ask_harness(PAIRS, tmp_path / "served", address, "secret", str(smollm2), smollm2)
    computed = judge_pairs(PAIRS, tmp_path / "computed", "hf", backend, "--device", "cpu")
    assert served.accuracy == computed.accuracy == 1.0
    np.testing.assert_allclose(served.loglikelihoods, computed.loglikelihoods, rtol=0, atol=1e-4)
    task = {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": [], "do_sample": False, "max_gen_toks": 16},
        "metric_list": [{"metric": "exact_match"}],
    }
    rows = [{"question": QUESTION[0]["content"], "answer": "Paris"}]
    chat = {"base_url": f"{address}/v1/chat/completions", "model": smollm2}
    for name, arguments, token in (("local-chat-completions", chat, "secret"), ("hf", backend, "")):
        options = ("--apply_chat_template", "--device", "cpu")
        run_harness(task, rows, tmp_path / name, name, arguments, *options, token=token)
    served_answer, computed_answer = (answers_in(tmp_path / name) for name in ("local-chat-completions", "hf"))
    assert served_answer == computed_answer and "Paris" in served_answer[0][0][0]


def test_the_stronger_the_steering_the_less_likely_is_plain_text(client, smollm2) -> None:
    vector = np.random.default_rng(0).standard_normal(576)
    texts = [good for good, _ in PAIRS]
    means = []
    for strength in (0.0, 0.3, 0.6, 1.2):
        edit = {"vector": (vector / np.linalg.norm(vector)).tolist(), "layer": LAYER, "strength": strength}
        steering = None if strength == 0.0 else {"edits": [edit], "positions": "all"}
        means.append(np.concatenate(likelihoods(client, smollm2, texts, steering)).mean())
    assert means == sorted(means, reverse=True) and means[0] - means[-1] > 0.5
