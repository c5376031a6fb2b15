"""What suites declare: metrics and ids."""

import pytest

from poolbench.errors import ConfigError, UnknownNameError
from poolbench_driver.contract.metrics import all_metrics, metric_info
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import Suite


def test_metric_metadata():
    assert metric_info("d2.best_gain.excess").higher_is_better
    assert metric_info("d2.scp.null_rank").higher_is_better is False
    assert metric_info("d1.direction.C1").summary.startswith("out-of-fold")
    with pytest.raises(UnknownNameError, match="metric"):
        metric_info("other.thing")
    assert all(metric.version >= 1 and metric.summary for metric in all_metrics().values())


def test_two_suites_may_not_declare_one_metric(monkeypatch):
    monkeypatch.setattr(SUITES, "all", lambda: [SUITES.get("poolbench")] * 2)
    with pytest.raises(ConfigError, match=r"two suites declare .*d1\.auroc"):
        all_metrics.__wrapped__()


def test_suite_registry():
    assert "d1.auroc" in {metric.id for metric in SUITES.get("poolbench").metrics}
    with pytest.raises(UnknownNameError, match="poolbench"):
        SUITES.get("poolbensh")
    with pytest.raises(ConfigError, match="registered twice"):
        SUITES.add(SUITES.get("poolbench"))
    names = [info.id for info in SUITES.built_in()]
    assert names == sorted(names) and "poolbench" in names


def test_every_suite_is_loaded_by_its_metadata():
    for info in SUITES.all():
        assert isinstance(info.load(), Suite)
