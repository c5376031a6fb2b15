"""Keys and tasks: what everything later stands on."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolbench.contracts.keys import canonical_json, derive_key, is_restricted
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
