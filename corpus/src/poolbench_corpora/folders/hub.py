"""Repositories of the Hugging Face hub as folders, and folders as such."""

from collections.abc import Sequence
from pathlib import Path

from poolbench.config import is_hub_id
from poolbench.errors import ConfigError, CorpusError, StoreError, shown

#: What names of datasets begin with, so that they are not folders.
PREFIX = "hf:"


def source_folder(source: str, kinds: Sequence[str] = (".jsonl",), repository: str = "dataset") -> Path:
    """Return the folder of a corpus: a path as it is, or `hf:OWNER/NAME[@REVISION]`, downloaded into the hub's cache.

    Only files that end in one of `kinds` are downloaded, of a repository that is a `dataset` or a `model`. Files that
    the cache has are not downloaded again, and an interrupted download continues.

    Raises:
        ConfigError: The name is not of this form.
        CorpusError: The dataset cannot be had; the message says what to do.
    """
    if not source.startswith(PREFIX):
        return Path(source)
    name, _, revision = source.removeprefix(PREFIX).partition("@")
    if not is_hub_id(name):
        raise ConfigError(f"{shown(source)}: write hf:OWNER/NAME, such as hf:nips234678/poolbench, or a folder")
    return _download(name, revision or None, [f"*{kind}" for kind in kinds], repository)


def _download(name: str, revision: str | None, patterns: list[str], kind: str) -> Path:
    from httpx2 import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        CachedRepoTreeNotFoundError,
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionResolutionError,
    )

    try:
        return Path(snapshot_download(name, repo_type=kind, revision=revision, allow_patterns=patterns))
    except GatedRepoError:
        raise CorpusError(
            f"{kind} {name} is gated: accept its licence on the hub and set HF_TOKEN to a token of yours, or download "
            "it elsewhere and give its folder instead"
        ) from None
    except RepositoryNotFoundError:
        raise CorpusError(
            f"{kind} {name} is not on the hub, or is private: set HF_TOKEN, or give a folder instead"
        ) from None
    except (CachedRepoTreeNotFoundError, RevisionResolutionError, HTTPError, OSError, ValueError) as error:
        cause = str(error).strip().split("\n")[0][:300] or type(error).__name__
        raise CorpusError(
            f"{kind} {name} could not be downloaded ({cause}); the same command continues. Without a network, "
            "download it elsewhere and give its folder instead"
        ) from None


def upload(folder: Path, place: str, kind: str) -> None:
    """Write a folder into the repository `hf:OWNER/NAME` of the hub. A missing repository is created.

    Args:
        kind: `dataset` or `model`.

    Raises:
        StoreError: It cannot be written; the message says what to do.
    """
    from httpx2 import HTTPError
    from huggingface_hub import HfApi

    name, api = place.removeprefix(PREFIX), HfApi()
    try:
        api.create_repo(name, repo_type=kind, exist_ok=True)
        api.upload_folder(repo_id=name, repo_type=kind, folder_path=folder, commit_message="Push of PoolBench")
    except (HTTPError, OSError, ValueError) as error:
        cause = str(error).strip().split("\n")[0][:300] or type(error).__name__
        remedy = "write hf:OWNER/NAME, and set HF_TOKEN to a token that may write there"
        raise StoreError(f"{shown(place)} could not be written on the hub ({cause}); {remedy}") from None
