"""Which concepts of a run may leave."""

import pytest

from poolbench.errors import NotFoundError, RestrictedError
from poolbench_driver.release.source import releasable_concepts


def test_concepts_are_checked_by_name() -> None:
    measured = ["contrast", "toxicity", "depression"]
    assert releasable_concepts(measured, None) == ["contrast"]
    with pytest.raises(RestrictedError, match=r"toxicity: .* of sensitive concepts stay in the store"):
        releasable_concepts(measured, ["contrast", "toxicity"])
    with pytest.raises(RestrictedError, match=r"^toxicity: "):
        releasable_concepts(["toxicity"], None)
    with pytest.raises(NotFoundError, match="did not measure hedging; it has contrast"):
        releasable_concepts(["contrast"], ["hedging"])
