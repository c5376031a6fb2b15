"""The shipped pipeline, loaded once."""

import pytest

from poolbench.config import assets_folder
from poolbench_pooler.annotate import Pipeline, load_pipeline


@pytest.fixture(scope="session")
def pipeline() -> Pipeline:
    if not (assets_folder() / "annotator" / "meta.json").is_file():
        pytest.skip("assets/annotator is missing; make it with `python -m recipes.annotator`")
    return load_pipeline("annotator")
