"""The self-test notices each fault of the operation."""

import re
from typing import Any

import pytest
from services.steerer.tests.engine.test_engine_guards import (
    NOT_CAPTURED,
    both_halves_of_the_pair,
    hooks_compiled_away,
    one_half_of_the_pair,
    restore_op,
    without,
)

from poolbench.errors import ReceiptError
from poolbench_steerer.engine.selftest import self_test

pytestmark = pytest.mark.lane(name="engines")


def additions_twice_as_large(worker: Any) -> None:
    from poolbench_steerer.plugin import state

    state.saved_delta = delta = state.LayerWork.delta
    state.LayerWork.delta = lambda work, of, layer: 2 * delta(work, of, layer)


def restore_additions(worker: Any) -> None:
    from poolbench_steerer.plugin import state

    state.LayerWork.delta = state.saved_delta


def projections_of_one_half(worker: Any) -> None:
    from poolbench_steerer.plugin import operators

    operators.saved_edit = edit = operators._edit
    operators._edit = lambda hidden, residual, state, layer, work: edit(hidden, None, state, layer, work)


def restore_edit(worker: Any) -> None:
    from poolbench_steerer.plugin import operators

    operators._edit = operators.saved_edit


@NOT_CAPTURED
@pytest.mark.parametrize(
    ("fault", "restore", "ways"),
    [
        # What was seen last may be that of an earlier text, or nothing.
        (hooks_compiled_away, restore_op, "not applied as asked|seen with norm"),
        (one_half_of_the_pair, restore_op, "unsteered_by_hand_nats"),
        (both_halves_of_the_pair, restore_op, "not applied as asked"),
        (additions_twice_as_large, restore_additions, "add_by_hand_nats"),
        (projections_of_one_half, restore_edit, "clamp_by_hand_nats"),
    ],
)
def test_the_self_test_notices(host, model_ref, fault, restore, ways):
    async def job(engine: Any) -> str:
        async with without(engine, fault, restore):
            with pytest.raises(ReceiptError) as raised:
                await self_test(engine)
        await self_test(engine)
        return str(raised.value)

    message = host.run(model_ref, job)
    measured = {name: float(value) for name, value in re.findall(r"(\w+_nats) ([\d.e+-]+|inf)", message)}
    assert re.search(ways, message) and "\n" not in message
    assert measured.get(ways, 1.0) > 0.05
