"""Settings for all tests: one thread per process, no deadline per example, and which tests share a worker."""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import pytest

# Two workers share two cores. Libraries read this when they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

hypothesis.settings.register_profile("poolbench", deadline=None)
hypothesis.settings.load_profile("poolbench")

#: Tests in one of these folders share what is expensive to make: the engine of the steerer, a trained scorer.
SHARED = ("services/steerer/tests/", "services/scorer/tests/")
#: Files in these folders that share nothing, because they start engines of their own.
ALONE = ("test_steerer_architectures.py", "test_steerer_deaths.py", "test_steerer_bounds.py")


def group_of(nodeid: str) -> str:
    """Return the group of a test. All tests of a group run in the same worker of pytest-xdist."""
    file = nodeid.partition("::")[0]
    return file if file.endswith(ALONE) else next((folder for folder in SHARED if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule whole groups, the largest first."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)
