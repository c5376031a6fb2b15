"""Fixtures of the tests that need several packages."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pages import REPOSITORY
from tests.servers.local import cluster

#: State folder of a running local cluster, such as that of `make demo`, for tests that need one.
SHARED = os.environ.get("TEST_CLUSTER", "")


@pytest.fixture(scope="session")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state folder of the cluster that TEST_CLUSTER names, else of one that is started for all tests."""
    if SHARED:
        yield REPOSITORY / SHARED
    else:
        with cluster(tmp_path_factory.mktemp("state")) as state:
            yield state


@pytest.fixture
def alone() -> None:
    """Leave out a test that kills or deletes where others use the cluster too; in CI nobody does."""
    if SHARED and not os.environ.get("CI"):
        pytest.skip("kills or deletes what others use")
