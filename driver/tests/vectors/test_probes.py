"""The offset of a probe of a run."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from poolbench_driver.vectors.probes import offset_of


@pytest.mark.parametrize(("num_rows", "width", "share"), [(60, 8, 0.5), (200, 40, 0.2), (30, 64, 0.5)])
def test_the_offset_of_a_probe_is_its_intercept(num_rows: int, width: int, share: float) -> None:
    """Independent implementation: scikit-learn's logistic regression on standardised vectors."""
    random = np.random.default_rng(num_rows)
    labels = (random.random(num_rows) < share).astype(int)
    vectors = random.normal(size=(num_rows, width)) * np.linspace(0.5, 20, width) + 3.0 * labels[:, None] + 7.0
    scaler = StandardScaler().fit(vectors)
    probe = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(scaler.transform(vectors), labels)
    weights = probe.coef_[0] / scaler.scale_
    intercept = probe.intercept_[0] - weights @ scaler.mean_
    assert offset_of(vectors @ weights, labels) == pytest.approx(intercept, abs=1e-6)
