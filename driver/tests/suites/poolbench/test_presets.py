"""How a run differs from the run of the reference."""

from driver.tests.comparison.test_published import MODEL

from poolbench_driver.config import SCORERS
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.suites.poolbench.presets import other_settings


def test_what_a_run_does_otherwise_is_named() -> None:
    given = {"preset": "demo", "protocol": "published", "model": "demo", "include_bos": False}
    apart = {each.name: each.ours for each in other_settings(load_run_config(None, given))}
    assert apart.keys() >= {"budget.num_train", "budget.max_tokens", "scorer_base", "include_bos", "corpus.source"}
    assert not apart.keys() & {"budget.strengths", "budget.opening_set", "sinks"}
    theirs = load_run_config(None, {"preset": "card", "model": MODEL.preset, **SCORERS["published"]})
    assert other_settings(theirs) == []  # the reference's classifiers are the reference's
    others = {**SCORERS["published"], "scorer_base": "somebody/classifiers"}
    apart = other_settings(load_run_config(None, {"preset": "card", "model": MODEL.preset, **others}))
    assert [each.name for each in apart] == ["scorer_base", "scorer_mode"]
