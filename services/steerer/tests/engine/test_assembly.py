"""The outputs of a text that is cut: in the middle of what vLLM gave at once, and joined to one."""

from dataclasses import replace
from typing import Any

import pytest

from poolbench_steerer.engine import Piece
from poolbench_steerer.engine.assembly import Assembly
from poolbench_steerer.engine.stopping import Stopped, StopRule
from poolbench_steerer.tokens import Tokens, tokens_of

pytestmark = pytest.mark.lane(name="engines")

RULE = StopRule(0, 1.0)


def output_of(token_ids: list[int], text: str) -> Any:
    """What vLLM gives for tokens that came since its last output."""
    from vllm.outputs import CompletionOutput, RequestOutput

    logprobs = [{token: None} for token in token_ids]
    completion = CompletionOutput(0, text, list(token_ids), 0.0, logprobs)  # type: ignore[arg-type]
    return RequestOutput("r", None, [1], None, [completion], finished=False)


def piece_of(token_ids: list[int]) -> Piece:
    return Piece(
        tuple(token_ids), tuple({token: -1.0} for token in token_ids), None, scores=tuple((1.0,) for _ in token_ids)
    )


@pytest.fixture
def tokens(model_ref: Any) -> Tokens:
    return tokens_of(model_ref)


@pytest.mark.parametrize("streams", [False, True])
def test_a_text_is_cut_within_an_output(host, model_ref, tokens, streams) -> None:
    """The third token of the second output ends the text."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    first, second = tokens.encode_plain("The river"), tokens.encode_plain(" runs past the mill")
    expected = [*first, *second[:3]]
    kind = RequestOutputKind.DELTA if streams else RequestOutputKind.FINAL_ONLY

    async def job(engine: Any) -> tuple[Any, Piece]:
        assembly = Assembly(engine.llm, [RULE], SamplingParams(output_kind=kind))
        await assembly.taken(output_of([*first], "The river"), piece_of([*first]))
        piece = piece_of([*second])
        scores = ((0.0,), (0.0,), *((2.0,) for _ in second[2:]))
        taken = await assembly.taken(output_of([*second], " runs past the mill"), replace(piece, scores=scores))
        assert len(assembly.token_ids) == len(expected)
        return taken

    output, piece = host.run(model_ref, job)
    text = output.outputs[0]
    assert ("The river" if streams else "") + text.text == tokens.decode(expected)
    assert list(text.token_ids) == list(piece.token_ids) == (expected[len(first) :] if streams else expected)
    assert len(text.logprobs) == len(piece.logprobs or ()) == len(piece.scores) == len(piece.token_ids)
    assert (output.finished, text.finish_reason, text.stop_reason) == (True, "stop", "stop_when")
    assert (piece.finish_reason, piece.stopped) == ("stop", Stopped(RULE, 2.0))


def test_what_stands_in_the_first_piece_alone_stays() -> None:
    first = replace(piece_of([5]), prompt_logprobs=(None, {1: -2.0}), prompt_scores=(None, (3.0,)))
    joined = first.joined(piece_of([6, 7]))
    assert joined.token_ids == (5, 6, 7)
    assert (joined.prompt_logprobs, joined.prompt_scores) == (first.prompt_logprobs, first.prompt_scores)
