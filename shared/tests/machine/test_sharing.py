"""Folders of the cluster that a node does not share with the others are refused."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from poolbench.errors import ConfigError
from poolbench.machine.sharing import folder_ids, folders, require_shared
from poolbench.settings import ClusterSettings
from poolbench.storage import Artifacts, open_store


def cluster(root: Path) -> ClusterSettings:
    return ClusterSettings(str(root / "store"), f"filesystem://{root}/queue")


def test_nodes_that_share_a_folder_see_the_same_ids_which_are_no_artifacts(tmp_path: Path) -> None:
    first = folder_ids(cluster(tmp_path))
    assert set(first) == {"store", "broker"} and len(set(first.values())) == 2
    assert folder_ids(cluster(tmp_path)) == first
    require_shared(cluster(tmp_path), first)
    folder_ids(cluster(tmp_path))
    assert list(Artifacts(open_store(str(tmp_path / "store"))).objects()) == []


def test_nodes_that_start_at_the_same_time_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(folder_ids, [cluster(tmp_path)] * 64))
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("place", ["store", "broker"])
def test_another_folder_under_the_same_path_is_refused(tmp_path: Path, place: str) -> None:
    here = cluster(tmp_path)
    expected = folder_ids(here) | {place: "0" * 32}
    message = f"POOLBENCH_{place.upper()}: {folders(here)[place]} on .* all machines share"
    with pytest.raises(ConfigError, match=message):
        require_shared(here, expected)


def test_what_is_reached_over_the_network_is_not_compared(tmp_path: Path) -> None:
    settings = ClusterSettings("s3://poolbench", "redis://:secret@127.0.0.1:1/0")
    assert folder_ids(settings) == {}
    require_shared(settings, folder_ids(cluster(tmp_path)))
