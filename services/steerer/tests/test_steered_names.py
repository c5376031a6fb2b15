"""Names of models that steer: how they are written and read."""

import pytest

from poolbench_steerer.steered_names import SteeredName


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("demo+contrast@.6", SteeredName("demo", "contrast", 0.6)),
        ("meta-llama/Llama-3.1-8B+joy@-2", SteeredName("meta-llama/Llama-3.1-8B", "joy", -2.0)),
        ("demo+contrast", SteeredName("demo", "contrast")),
        ("/a+b/model+joy@1.25", SteeredName("/a+b/model", "joy", 1.25)),
        ("demo+joy@0.00001", SteeredName("demo", "joy", 1e-5)),
    ],
)
def test_a_name_is_read_as_it_is_written(text: str, name: SteeredName) -> None:
    assert SteeredName.parse(text) == name
    assert SteeredName.parse(str(name)) == name


@pytest.mark.parametrize(
    "text", ["demo", "+joy", "demo+", "demo+joy@", "demo+joy@x", "demo+joy@nan", "demo+joy@1e3", ""]
)
def test_other_names_steer_nothing(text: str) -> None:
    assert SteeredName.parse(text) is None
