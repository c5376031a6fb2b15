"""Keys, tasks, result rows: what everything later stands on."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolbench.contracts.keys import canonical_json, derive_key, is_restricted
from poolbench.contracts.results import IDENTITY, VOLATILE, cell_id, result_table, results_digest
from poolbench.contracts.tasks import Task

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
PARAMS = st.dictionaries(st.text(), JSON, max_size=4)
INPUTS = st.dictionaries(
    st.text(min_size=1), st.text(min_size=1).filter(lambda key: not is_restricted(key)), max_size=4
)


@settings(deadline=None, max_examples=60)
@given(params=PARAMS, inputs=INPUTS, seed=st.integers(0, 99))
def test_a_key_does_not_depend_on_the_order_of_its_parts(params: dict, inputs: dict, seed: int) -> None:
    def shuffled(mapping: dict) -> dict:
        items = list(mapping.items())
        random.Random(seed).shuffle(items)
        return dict(items)

    assert derive_key("a.b", 1, params, inputs) == derive_key("a.b", 1, shuffled(params), shuffled(inputs))


@settings(deadline=None, max_examples=60)
@given(params=PARAMS, inputs=INPUTS, other=PARAMS)
def test_a_key_moves_with_everything_it_is_derived_from(params: dict, inputs: dict, other: dict) -> None:
    key = derive_key("a.b", 1, params, inputs)
    assert key != derive_key("a.b", 2, params, inputs)
    assert key != derive_key("a.c", 1, params, inputs)
    assert key != derive_key("a.b", 1, params, {**inputs, "one more": "x.1"})
    same = canonical_json(params) == canonical_json(other)
    assert (key == derive_key("a.b", 1, other, inputs)) == same


@settings(deadline=None, max_examples=40)
@given(params=PARAMS, inputs=INPUTS)
def test_restriction_is_inherited_and_never_lost(params: dict, inputs: dict) -> None:
    open_key = derive_key("a.b", 1, params, inputs)
    assert not is_restricted(open_key)
    secret = derive_key("a.b", 1, params, inputs, restricted=True)
    assert is_restricted(secret)
    assert is_restricted(derive_key("c.d", 1, params, {**inputs, "passages": secret}))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_carry_is_refused(value: float) -> None:
    with pytest.raises(ValueError):
        derive_key("a.b", 1, {"strength": value}, {})


def test_published_key_stays_what_it_was() -> None:
    """A change of this value recomputes every store there is: it needs a new KEYS_VERSION."""
    assert derive_key("a.b", 1, {"x": 1}, {"passages": "corpus.passages.0"}) == "a.b.22c4ce03c79fef0fd34a023946346fb4"
    assert derive_key("a.b", 1, {"x": "é"}, {}) == "a.b.04917832fdf63f52805165aa8282929c"


def test_a_task_is_known_by_its_outputs_and_restricted_by_its_keys() -> None:
    task = Task(kind="prober.probe", inputs={"a": "x.1"}, outputs={"measures": "y.1"})
    assert task.task_id == Task(kind="prober.probe", outputs={"measures": "y.1"}, run_id="other").task_id
    assert task.task_id != Task(kind="prober.probe", outputs={"measures": "y.2"}).task_id
    assert task.service == "prober" and not task.restricted
    assert Task(kind="prober.probe", inputs={"a": "restricted.x.1"}, outputs={"m": "y.1"}).restricted
    assert Task.model_validate(task.model_dump(mode="json")) == task


def _row(**changes: Any) -> dict[str, Any]:
    row = {
        "run_id": "r1", "suite": "poolbench", "model": "demo", "layer": 2, "strategy": "A1_mean", "concept": "contrast",
        "metric": "d1.auroc", "params": "{}", "value": 0.8123456789, "ci_low": 0.7, "ci_high": 0.9, "status": "ok",
        "wall_s": 1.5, "created_at": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return {**row, **changes}


def test_the_digest_ignores_order_rounding_and_what_differs_between_equal_runs() -> None:
    rows = [_row(layer=layer, value=layer / 10) for layer in range(5)]
    volatile = dict.fromkeys(VOLATILE, None) | {"run_id": "r2", "wall_s": 99.0, "peak_bytes": 7}
    again = [row | volatile for row in reversed(rows)]
    assert results_digest(result_table(rows)) == results_digest(result_table(again))
    base = results_digest(result_table([_row(value=0.81234561)]))
    assert base == results_digest(result_table([_row(value=0.81234563)]))
    assert results_digest(result_table([_row(value=0.0)])) == results_digest(result_table([_row(value=-0.0)]))
    results_digest(result_table([_row(ci_high=float("inf"))]))


@pytest.mark.parametrize("change", [{"value": 0.81235}, {"status": "failed", "value": None}, {"seed": 1}, {"layer": 3}])
def test_the_digest_moves_with_what_is_measured(change: dict[str, Any]) -> None:
    assert results_digest(result_table([_row()])) != results_digest(result_table([_row(**change)]))


@pytest.mark.parametrize("column", IDENTITY)
def test_a_cell_is_identified_by_each_identity_column(column: str) -> None:
    assert cell_id(_row()) != cell_id(_row(**{column: 77}))


@pytest.mark.parametrize("column", ["value", "run_id", "seed", "status", "created_at", "config_hash"])
def test_a_cell_is_not_identified_by_its_outcome(column: str) -> None:
    assert cell_id(_row()) == cell_id(_row(**{column: "other"}))


@pytest.mark.parametrize(
    "wrong", [{"value": None}, {"status": "failed"}, {"value": float("nan")}, {"value": float("inf")}]
)
def test_a_value_needs_status_ok_and_must_be_finite(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"d1\.auroc"):
        result_table([_row(**wrong)])


def test_parameters_are_text_with_sorted_keys() -> None:
    table = result_table([_row(params={"b": 1, "a": 2})])
    assert table["params"].to_pylist() == ['{"a": 2, "b": 1}']
