"""The playground of the console in a real browser, over a real steerer."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driver.tests.console.conftest import SCREENS, check_reading, serving
from driver.tests.vector_cards import vector_of
from services.scorer.tests.conftest import save_tiny_bert
from services.steerer.tests.conftest import settle
from tests.servers import services as upstream

from poolbench.config import resolve_model
from poolbench.contracts.tables import directions_schema, table_from_rows
from poolbench.contracts.wire import RUN_FILES, run_path
from poolbench.library.directions import TABLE, table_of
from poolbench.settings import ClusterSettings
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_driver.cluster.services import Services
from poolbench_driver.console.app import Console
from poolbench_driver.records import Runs
from poolbench_driver.vectors.card import Application, Strength
from poolbench_driver.vectors.exporting import FORMATS
from poolbench_scorer.service import ScorerService
from poolbench_steerer.service import SteererService

pytestmark = pytest.mark.lane(name="engines")


@pytest.fixture(scope="module")
def site(
    host: Any, tiny_model: Path, unit_vectors: np.ndarray, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A console whose steerer has the tiny model, in which a run has measured contrast at two layers; and a scorer."""
    folder = tmp_path_factory.mktemp("playground")
    artifacts, model = Artifacts(FolderStore(folder / "store")), str(tiny_model)
    rows = []
    for layer in (2, 4):
        key = f"prober.probe.000{layer}"
        row = {"direction_id": "C1", "vector": unit_vectors[layer].tolist(), "raw_norm": 1.0, "status": None}
        artifacts.write_table(key, table_from_rows([row], directions_schema(256)))
        of = {"model": model, "model_revision": resolve_model(model).revision, "concept": "contrast"}
        figures = {"d1": 0.9, "gain": 1 / layer, "gain_where_chosen": 1 / layer}
        figures |= {"best_strength": 0.35, "fluent_strength": 0.4}
        rows.append(of | figures | {"strategy": "A1_mean", "layer": layer, "construction": "C1", "key": key})
    pq.write_table(table_of(rows), sink := pa.BufferOutputStream())
    artifacts.store.put(run_path("run-1", f"{RUN_FILES}{TABLE}.parquet"), sink.getvalue().to_pybytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "config", host.config.model_copy(update={"model": model}))
        host.load()
        services = {"steerer": SteererService(host, lambda: artifacts), "scorer": ScorerService(lambda: artifacts)}
        with upstream.serving(services) as address:
            environment = upstream.cluster_environment(address, folder, folder / "store")
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setenv("POOLBENCH_MODEL_FOLDERS", str(folder))
            save_tiny_bert(folder / "contrast")
            asked = {"concept": "contrast", "source": str(folder), "positive_label": "LABEL_1"}
            Services(ClusterSettings.load()).post("scorer", "import", asked)
            with serving(Console(Runs(folder), Services(ClusterSettings.load())).application()) as console:
                yield console


def generate(page: Any) -> list[str]:
    page.get_by_role("button", name="Generate").click()
    page.get_by_text("Done.", exact=True).wait_for()
    return page.locator("section.text > p:first-of-type").all_inner_texts()


def test_texts_stream_side_by_side_with_scores_and_receipts(site: str, opened: Any, tiny_model: Path) -> None:
    page = opened(f"{site}/playground")
    page.get_by_label("Prompt", exact=True).fill("The river <img src=x onerror=alert(1)>")
    page.get_by_label("steer by").select_option("contrast")
    assert "fluent up to 0.4" in page.locator(".strengths").inner_text()
    assert page.get_by_label("Strength 1", exact=True).input_value() == "0.35"  # the best of the run
    page.get_by_label("Strength 1", exact=True).fill("")  # as on the way to -0.6
    assert page.get_by_label("Strength 1", exact=True).input_value() == ""
    page.get_by_label("Strength 1", exact=True).fill("0.3")
    page.get_by_role("button", name="One more").click()
    page.get_by_label("Strength 2", exact=True).fill("-0.6")
    assert "beyond 0.4: the run's texts were not fluent" in page.locator(".strengths").inner_text()
    page.get_by_label("read along").select_option("contrast")
    page.get_by_label("at layer").select_option("4")
    page.get_by_label("new tokens").fill("8")
    texts = generate(page)
    assert len(set(texts)) == 3
    assert page.locator("section.text h2").all_inner_texts() == ["unsteered", "strength 0.3", "strength -0.6"]
    for section, proof in zip(page.locator("section.text").all(), ("unsteered", "8 of 8", "8 of 8"), strict=True):
        tokens = section.locator(".token > span").all_inner_texts()
        is_split = any(token.startswith("token_id:") for token in tokens)  # a character of several tokens
        assert section.locator(".token small").count() == 8
        assert section.locator("p[dir]").count() == 1 + is_split  # the text once, with its scores where it can be
        assert f"{proof}" in section.inner_text() and "read at layer 4" in section.inner_text()
        assert re.search(r"scorer contrast: 0\.\d{3}", section.inner_text())
    check_reading(page)

    # The same again from the address, and by curl's body.
    assert "strengths=0.3%2C-0.6" in page.url and "token" not in page.url.lower().replace("max_tokens", "")
    again = opened(page.url)
    assert generate(again) == texts
    page.get_by_role("button", name="curl").click()
    assert "POOLBENCH_TOKEN" in page.locator("dialog textarea").input_value()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="command line").click()
    assert "--concept 'contrast' --strategy 'A1_mean' --layer 2" in page.locator("dialog textarea").input_value()


@pytest.mark.parametrize(("scheme", "width"), SCREENS)
def test_the_page_reads_on_every_screen(site: str, opened: Any, scheme: str, width: int) -> None:
    page = opened(f"{site}/playground#concept=contrast&read=contrast", scheme, width)
    page.locator(".strengths").wait_for()
    check_reading(page)


@pytest.fixture
def texts_do_not_end(site: str, host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of the engine repeat their third step again and again, so that only a client can end them."""
    engine = host.keeper.engine
    generate_text = engine.vllm_generate

    async def without_end(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
        async with aclosing(generate_text(*arguments, **options)) as outputs:
            for _ in range(3):
                yield (output := await anext(outputs))
            while True:
                await asyncio.sleep(0.02)
                yield output

    monkeypatch.setattr(engine, "vllm_generate", without_end)


@pytest.mark.usefixtures("texts_do_not_end")
def test_a_text_is_stopped(site: str, host: Any, opened: Any) -> None:
    page = opened(f"{site}/playground#max_tokens=200")
    page.get_by_role("button", name="Generate").click()
    text = page.locator("section.text > p:first-of-type", has_text=re.compile(r"\w"))
    text.wait_for()
    page.get_by_role("button", name="Stop").click()
    page.locator("section.text [role=alert]", has_text="Stopped.").wait_for()
    assert text.count() == 1
    settle(host)


def test_a_vector_of_a_file_steers(site: str, opened: Any, unit_vectors: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", 60 * unit_vectors[7])
    page = opened(f"{site}/playground#max_tokens=6")
    page.get_by_label("steer by").select_option("(a vector of a file)")
    page.get_by_label("file of a vector").set_input_files(tmp_path / "mine.npy")
    page.get_by_text("Registered mine.npy").wait_for()
    page.get_by_label("its layer").fill("3")
    assert page.get_by_label("Strength 1", exact=True).input_value() == "1"
    assert "as factors of the vector" in page.locator(".strengths").inner_text()
    texts = generate(page)
    proof = page.locator("section.text").last.inner_text()
    assert texts[0] != texts[1] and "6 of 6 positions changed (add at layer 3 by 1)" in proof


def test_the_card_of_a_file_says_how_its_vectors_steer(
    site: str, opened: Any, tiny_model: Path, tmp_path: Path
) -> None:
    of_model = {"model": str(tiny_model), "model_revision": resolve_model(str(tiny_model)).revision}
    card = {"apply": Application(alpha_unit="absolute", positions="all"), "strength": Strength(recommended=8.0)}
    (tmp_path / "mine.gguf").write_bytes(FORMATS["gguf"].files(vector_of(2, 4, **of_model, **card))[""])
    page = opened(f"{site}/playground#max_tokens=6")
    page.get_by_label("steer by").select_option("(a vector of a file)")
    page.get_by_label("file of a vector").set_input_files(tmp_path / "mine.gguf")
    page.get_by_text("Registered mine.gguf, for layer 2, 4.").wait_for()
    assert page.get_by_label("Strength 1", exact=True).input_value() == "8"
    assert page.get_by_label("positions").input_value() == "all"
    generate(page)
    assert "(add at layer 2 by 8, add at layer 4 by 8)" in page.locator("section.text").last.inner_text()
    page.get_by_role("button", name="command line").click()
    command = page.locator("dialog textarea").input_value()
    assert "--positions 'all'" in command and "--unit absolute --edit" in command and command.count("--edit") == 2
