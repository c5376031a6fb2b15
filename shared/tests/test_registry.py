"""The registry behind concepts, strategies, readouts, directions and suites."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest

from poolbench import registry
from poolbench.errors import ConfigError, UnknownNameError
from poolbench.registry import Registry


@dataclass(frozen=True)
class Fruit:
    id: str
    weight: float = 1.0


APPLE, PEAR = Fruit("apple"), Fruit("pear")


@pytest.fixture
def fruits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry[Fruit]]:
    """A registry of apples whose plug-ins are the given objects, by name."""

    def make(**plugins: Any) -> Registry[Fruit]:
        own, others = ModuleType("own_fruits"), ModuleType("other_fruits")
        monkeypatch.setitem(sys.modules, own.__name__, own)
        monkeypatch.setitem(sys.modules, others.__name__, others)
        points = [EntryPoint(name, f"other_fruits:{name}", "fruits") for name in plugins]
        monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "fruits" else [])
        for name, loaded in plugins.items():
            setattr(others, name, loaded)
        made = Registry("fruit", Fruit, group="fruits", built_in=[own.__name__])
        made.add(APPLE)
        return made

    return make


def ids(fruits: Registry[Fruit]) -> list[str]:
    return [fruit.id for fruit in fruits.all()]


def test_items_of_other_packages_are_not_built_in(fruits: Any) -> None:
    registry_of_fruits = fruits(plum=Fruit("plum"))
    registry_of_fruits.add(PEAR, "own_fruits")
    assert registry_of_fruits.built_in() == [PEAR] and len(registry_of_fruits.all()) == 3


def test_what_is_added_is_found_once_by_its_own_name(fruits: Any) -> None:
    made = fruits()
    assert made.add(PEAR) is PEAR
    assert made.get("pear") is PEAR and ids(made) == ["apple", "pear"]
    made = fruits()
    with pytest.raises(ConfigError, match="fruit 'apple' is registered twice; choose another id"):
        made.add(Fruit("apple", weight=2.0))
    assert made.get("apple") is APPLE
    with pytest.raises(ConfigError, match=r"it is of class str; a fruit \(Fruit\)"):
        made.add("apple")
    with pytest.raises(UnknownNameError, match="unknown fruit 'aple'; did you mean apple"):
        fruits().get("aple")


def test_a_plug_in_is_a_thing_a_module_or_a_function(fruits: Any) -> None:
    made: Registry[Fruit] = fruits(
        thing=PEAR,
        module=ModuleType("registers_when_it_is_imported"),
        answers=lambda: Fruit("plum"),
        registers=lambda: made.add(Fruit("quince")) and None,
        does_both=lambda: made.add(Fruit("fig")),
    )
    assert ids(made) == ["apple", "pear", "plum", "quince", "fig"]
    assert ids(made) == ["apple", "pear", "plum", "quince", "fig"]  # loaded once


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        (3, "it is of class int; a fruit (Fruit), or a module or function that registers one, is needed"),
        (lambda: "apple", "it is of class str"),
        (None, "it is of class NoneType"),
        (Fruit("apple"), "fruit 'apple' is registered twice"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_plug_in_that_fails_is_named(fruits: Any, loaded: Any, message: str) -> None:
    made = fruits(wrongly=loaded)
    for _ in range(2):  # and again as long as it is there
        with pytest.raises(ConfigError) as caught:
            made.all()
        assert "fruit plug-in 'wrongly' (other_fruits:wrongly) of a package without metadata" in str(caught.value)
        assert message in str(caught.value) and "repair or uninstall it" in str(caught.value)


def test_what_fails_half_way_leaves_nothing_and_what_was_loaded_stays(fruits: Any) -> None:
    broken = [True]

    def half_way() -> None:
        made.add(Fruit("plum"))
        if broken:
            raise RuntimeError("half-way")

    made: Registry[Fruit] = fruits(good=PEAR, half_way=half_way)
    for _ in range(2):
        with pytest.raises(ConfigError, match="RuntimeError: half-way"):
            made.get("apple")
    broken.clear()
    assert ids(made) == ["apple", "pear", "plum"]


def test_a_plug_in_may_look_up_what_is_there(fruits: Any) -> None:
    made: Registry[Fruit] = fruits(heavier=lambda: Fruit("big apple", 2 * made.get("apple").weight))
    assert made.get("big apple").weight == 2.0


def test_threads_that_ask_at_once_see_everything(fruits: Any) -> None:
    def slow() -> Fruit:
        time.sleep(0.05)
        return PEAR

    made, seen = fruits(slow=slow), []
    threads = [threading.Thread(target=lambda: seen.append(ids(made))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [["apple", "pear"]] * 8


def test_strategies_keep_their_order_whatever_was_imported_before() -> None:
    """Plans list strategies in this order, so that a run plans the same tasks in every process."""
    show = "from poolbench.pooling.registry import STRATEGIES; print([one.id for one in STRATEGIES.all()])"
    orders = {
        subprocess.run([sys.executable, "-c", before + show], check=True, capture_output=True, text=True).stdout
        for before in ("", "import poolbench.pooling.saliency, poolbench.pooling.linguistic; ")
    }
    assert len(orders) == 1
