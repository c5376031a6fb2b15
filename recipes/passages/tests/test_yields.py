"""The counts of what each rule dropped, and examples that are never those of sensitive concepts."""

import pytest
from recipes.passages.yields import RULES, Yield

pytestmark = pytest.mark.lane(name="recipes")


@pytest.mark.parametrize("quoting", [True, False])
def test_a_rule_keeps_its_count_and_the_first_examples(quoting: bool) -> None:
    documents: list[int] = []
    found = Yield(quoting=quoting, progress=documents.append)
    for number in range(4):
        found.read("wiki" if number else "news")
        found.drop("markup", f"a  {number}\n" + "x" * 200)
    examples = [f"a {number} " + "x" * 155 for number in range(3)]
    rule = {"meaning": RULES["markup"], "dropped": 4, "examples": examples if quoting else []}
    assert found.to_dict() == {"chosen": 0, "documents": {"news": 1, "wiki": 3}, "rules": {"markup": rule}}
    assert documents == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="no rule 'taste'; there are empty, markup"):
        found.drop("taste", "")
