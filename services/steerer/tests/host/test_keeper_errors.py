"""No exception of vLLM leaves the replica: not from a verb, a stream or a task."""

import json
import pickle
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from poolbench.errors import InputError, PoolbenchError
from poolbench_steerer.engine import GenerationRequest
from poolbench_steerer.engine.perplexity import score_continuations
from poolbench_steerer.errors import EngineError
from poolbench_steerer.host import EngineHost

pytestmark = pytest.mark.lane(name="engines")

READ = """
import pickle, sys
sys.modules["vllm"] = None  # importing it fails
error = pickle.load(sys.stdin.buffer)
print(type(error).__name__, error.code, error.http_status)
"""


def raised(call: Callable[[], Any]) -> PoolbenchError:
    with pytest.raises(PoolbenchError) as caught:
        call()
    return caught.value


def read_without_vllm(error: PoolbenchError) -> str:
    """What a process that has no vLLM reads of a pickled error."""
    done = subprocess.run([sys.executable, "-c", READ], input=pickle.dumps(error), capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.fixture
def failing(host: EngineHost, model_ref: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes vLLM raise an error in every request, after some of its outputs."""

    def fail(error: Exception, after: int = 0) -> None:
        async def patch(engine: Any) -> None:
            generate = type(engine.llm).generate.__get__(engine.llm)  # vLLM's own, whatever failed before

            async def broken(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
                num_seen = 0
                async for output in generate(*args, **kwargs):
                    if num_seen == after:
                        raise error
                    num_seen += 1
                    yield output

            monkeypatch.setattr(engine, "vllm_generate", broken)

        host.run(model_ref, patch)

    return fail


def vllm_errors() -> list[tuple[Exception, str, int]]:
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.engine.exceptions import EngineGenerateError

    inner = EngineGenerateError()
    inner.__cause__ = KeyError("blocks")
    return [(inner, "engine", 500), (VLLMValidationError("no", parameter="x", value=object()), "input", 400)]


def test_verbs_answer_with_an_error_of_ours(http, host, model_ref, tiny_model, failing):
    host.run(model_ref, _nothing)  # imports vLLM
    model = str(tiny_model)
    for error, code, status in vllm_errors():
        failing(error)
        for verb, body in (
            ("/generate", {"prompts": ["a"]}),
            ("/perplexity", {"texts": ["The river runs"]}),
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/completions", {"prompt": "a", "stream": True}),
        ):
            answer = http.post(verb, json=body | {"model": model})
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), verb


def test_a_stream_that_has_begun_ends_with_an_error_event(http, host, model_ref, tiny_model, failing):
    host.run(model_ref, _nothing)
    failing(vllm_errors()[0][0], after=3)
    body = {"model": str(tiny_model), "prompt": "a", "stream": True, "ignore_eos": True}
    answer = http.post("/v1/completions", json=body)
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert answer.status_code == 200
    assert 2 <= len(events) <= 4  # a slow reader gets several tokens in one event
    assert json.loads(events[-1])["error"]["code"] == "engine"
    assert "KeyError: 'blocks'" in json.loads(events[-1])["error"]["message"]


def test_what_a_task_raises_can_be_read_where_no_vllm_is(host, model_ref, failing):
    """Handlers of tasks call ``host.run``; so does everything else that asks the engine."""
    host.run(model_ref, _nothing)
    requests = [GenerationRequest((5, 6), 2)]
    for error, code, status in vllm_errors():
        failing(error)
        for job in (
            lambda engine: engine.generate(requests),
            lambda engine: score_continuations(engine, [((5,), (6, 7))]),
        ):
            ours = raised(lambda job=job: host.run(model_ref, job))
            assert read_without_vllm(ours) == f"{type(ours).__name__} {code} {status}"
            assert ours.__cause__ is error  # for the log of the replica; pickles do not hold it


def test_what_vllm_itself_refuses_is_an_input_error(host, model_ref):
    """Past the bounds of the verbs, as a task's parameters could be."""
    for change in ({"temperature": 2.1}, {"temperature": float("inf")}, {"top_p": 0.0}, {"logprobs": 10**6}):
        request = GenerationRequest((5, 6), 2, **change)
        error = raised(lambda request=request: host.run(model_ref, lambda engine: engine.generate([request])))
        assert isinstance(error, InputError)
        assert "refuses" in str(error)


def test_an_error_in_the_worker_is_an_error_of_ours(host, model_ref, monkeypatch):
    async def unknown(engine: Any) -> Any:
        return await engine.llm.collective_rpc("steering_" + "nothing")

    from vllm.v1.engine.exceptions import EngineGenerateError

    with pytest.raises(Exception) as caught:
        host.run(model_ref, unknown)
    assert not isinstance(caught.value, EngineGenerateError)
    assert type(caught.value).__module__.split(".")[0] in ("builtins", "poolbench_steerer")


def test_a_tokenizer_that_breaks_is_a_model_error(http, tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text('{"version": 5}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    answer = http.post("/generate", json={"prompts": ["a"], "model": str(tmp_path)})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "model")


def test_errors_without_a_cause_say_their_own_message():
    from poolbench_steerer.host.keeper import as_ours

    class ForeignError(Exception):
        """Of a package that is not ours."""

    ours = as_ours(ForeignError("out of slots"))
    assert isinstance(ours, EngineError)
    assert "ForeignError: out of slots" in str(ours)
    assert as_ours(KeyError("k")).args == ("k",)


async def _nothing(_engine: Any) -> None:
    return None
