"""Groups of values."""

from poolbench.grouping import grouped


def test_groups_and_values_are_in_the_order_of_their_first_appearance() -> None:
    groups = grouped([("b", 1), ("a", 2), ("b", 0), ("b", 1)])
    assert list(groups.items()) == [("b", [1, 0, 1]), ("a", [2])]
    assert "c" not in groups and grouped([]) == {}
