"""A concept with a known direction: extraction, construction, choice and erasure recover it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.planted_model import CONCEPT, LAYER, PlantedModel, make_planted
from transformers import AutoModelForCausalLM, AutoTokenizer

from poolbench.config import resolve_model
from poolbench.contracts.measures import GatedScorer
from poolbench.pooling.batch import Request
from poolbench.statistics.response import ResponseGrid, split_openings
from poolbench.steps.extractor import TrainedParams
from poolbench.steps.prober import NullParams, ProbeParams
from poolbench.texts import load_openings
from poolbench_corpora.planted import build_planted
from poolbench_driver.find.baselines import steered_gain
from poolbench_driver.find.selection import Candidate, select
from poolbench_driver.measures.prompting import paired_gain
from poolbench_driver.measures.response import SteeringRules
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts
from poolbench_extractor.models.load import load_decoder
from poolbench_extractor.trained import trained_direction
from poolbench_prober.d1.core import direction_cell, null_cell
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors

pytestmark = pytest.mark.lane(name="series")

STRATEGIES, LAYERS, STRENGTHS = ("A1_mean", "W2_last_k"), (LAYER - 1, LAYER, LAYER + 1), (0.5, 1.0)
RULES = SteeringRules(num_bootstrap=200, max_perplexity_ratio=1e6, max_added_repetition=1.0)
NUM_TOKENS = 20
Change = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> PlantedModel:
    return make_planted(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def passages() -> dict[str, pa.Table]:
    table = build_planted(CONCEPT, seed=0, num_train=80, num_test=40, num_scorer=0)
    return {split: table.filter([name == split for name in table["split"].to_pylist()]) for split in ("train", "test")}


@pytest.fixture(scope="module")
def directions(planted: PlantedModel, passages: dict[str, pa.Table]) -> dict[tuple[str, int], np.ndarray]:
    """C1 of each strategy and layer, and five null directions of the layer, through the services' own functions."""
    train = passages["train"]
    texts = PassageTexts(train["passage_id"].to_pylist(), train["text"].to_pylist())
    requests = {layer: [Request.of(name) for name in STRATEGIES] for layer in LAYERS}
    tables = extract(load_decoder(resolve_model(str(planted.folder))), texts, requests)
    made = {}
    rows = Passages.from_table(train)
    for layer in LAYERS:
        for name in STRATEGIES:
            vectors = PooledVectors.from_table(tables[f"{name}/{layer}"], texts.ids)
            made[name, layer] = direction_cell(rows, vectors, ProbeParams(concept=CONCEPT)).directions["C1"].vector
    mean = PooledVectors.from_table(tables[f"A1_mean/{LAYER}"], texts.ids)
    nulls = null_cell(rows, mean, NullParams(num_nulls=5))
    d = planted.direction
    for number, null in enumerate(nulls):
        rest = null.vector - (null.vector @ d) * d
        made[f"random_{number}", LAYER] = rest / np.linalg.norm(rest)
    return made


class Writer:
    """The planted model in Transformers, whose blocks can be changed."""

    def __init__(self, planted: PlantedModel) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(planted.folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(planted.folder, dtype=torch.float32).eval()
        self.markers = torch.tensor(planted.markers)

    @contextmanager
    def changed(self, layer: int, change: Change) -> Iterator[None]:
        hook = self.model.model.layers[layer].register_forward_hook(lambda _module, _inputs, hidden: change(hidden))
        yield
        hook.remove()

    def shares(self, prompts: list[str]) -> np.ndarray:
        """Return whether each prompt's greedy text has a marker, as a score of the concept."""
        batch = self.tokenizer(prompts, return_tensors="pt", padding=True)
        with torch.inference_mode():
            made = self.model.generate(**batch, max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=1)
        return torch.isin(made[:, batch["input_ids"].shape[1] :], self.markers).any(dim=1).double().numpy()

    def norm(self, layer: int) -> float:
        """Return a norm of the residual stream, the unit of strength."""
        batch = self.tokenizer(load_openings("neutral-54", 2)["text"].to_pylist()[0], return_tensors="pt")
        with torch.inference_mode():
            states = self.model(**batch, output_hidden_states=True).hidden_states[layer + 1]
        return float(states[0].norm(dim=-1).median())

    def grid(self, layer: int, vector: np.ndarray, strengths: Sequence[float]) -> ResponseGrid:
        """Return the shares of openings that are steered along a vector; perplexity and repetition stay the same."""
        openings = load_openings("neutral-54", 12)["text"].to_pylist()
        step, scores = self.norm(layer) * torch.tensor(vector, dtype=torch.float32), [self.shares(openings)]
        for strength in strengths:
            with self.changed(layer, lambda hidden, size=strength: hidden + size * step):
                scores.append(self.shares(openings))
        score, names = np.stack(scores, axis=1), tuple(f"o{number:02}" for number in range(len(openings)))
        flat, is_first = np.ones_like(score), np.isin(names, split_openings(names, RULES.seed)[0])
        return ResponseGrid(names, np.array([0.0, *strengths]), score, flat, 20 * flat, 0 * flat, is_first)


@pytest.fixture(scope="module")
def writer(planted: PlantedModel) -> Writer:
    return Writer(planted)


def test_the_stream_is_free_of_the_direction_until_a_marker_and_has_it_from_there_on(
    planted: PlantedModel, writer: Writer, passages: dict[str, pa.Table]
) -> None:
    d = torch.tensor(planted.direction)
    for row in passages["test"].to_pylist()[:4]:
        batch = writer.tokenizer(row["text"], return_tensors="pt")
        with torch.inference_mode():
            states = writer.model(**batch, output_hidden_states=True).hidden_states
        along = [(layer[0] @ d).numpy() for layer in states[1:-1]]
        seen = np.isin(batch["input_ids"][0].numpy(), planted.markers).cumsum() > 0
        assert seen.any() == bool(row["label"])
        for block, sizes in enumerate(along):
            if block < LAYER:
                assert not sizes.any()
            else:
                assert not sizes[~seen].any() and (sizes[seen] > 5).all()


def test_the_direction_is_recovered_at_its_layer_and_nowhere_before(
    planted: PlantedModel, directions: dict[tuple[str, int], np.ndarray]
) -> None:
    cosines = {key: float(vector @ planted.direction) for key, vector in directions.items() if key[0] in STRATEGIES}
    assert min(cosine for (_, layer), cosine in cosines.items() if layer == LAYER) >= 0.95
    assert max(abs(cosine) for (_, layer), cosine in cosines.items() if layer < LAYER) < 1e-6


def test_the_choice_is_the_direction_among_random_ones_and_those_of_earlier_layers(
    planted: PlantedModel, writer: Writer, directions: dict[tuple[str, int], np.ndarray]
) -> None:
    grids = {
        Candidate(layer, name, name, "C1"): writer.grid(layer, vector, STRENGTHS)
        for (name, layer), vector in directions.items()
        if layer <= LAYER
    }
    selection = select(grids, RULES)
    chosen = directions[selection.chosen.strategy, selection.chosen.layer]
    assert selection.chosen.layer == LAYER and chosen @ planted.direction >= 0.95
    assert selection.gain > 0.5 and selection.interval and selection.interval[0] > 0
    assert all(one.strategy in STRATEGIES and one.layer == LAYER for one in selection.tied)


def test_erasing_it_takes_the_concept_to_chance_and_random_directions_do_not(
    writer: Writer, directions: dict[tuple[str, int], np.ndarray], passages: dict[str, pa.Table]
) -> None:
    """Chance is what the same model writes on the halves of passages without the concept."""
    rows = passages["test"].to_pylist()
    halves = {
        label: [" ".join(row["text"].split()[: len(row["text"].split()) // 2]) for row in rows if row["label"] == label]
        for label in (0, 1)
    }

    def without(vector: np.ndarray) -> np.ndarray:
        unit = torch.tensor(vector, dtype=torch.float32)
        with writer.changed(LAYER, lambda hidden: hidden - (hidden @ unit)[..., None] * unit):
            return writer.shares(halves[1])

    whole, chance = writer.shares(halves[1]), writer.shares(halves[0]).mean()
    erased = without(directions["A1_mean", LAYER])
    random = np.mean([without(directions[f"random_{number}", LAYER]) for number in range(5)], axis=0)
    scorer = GatedScorer(CONCEPT)
    drop, other = (paired_gain("necessity", tables(whole), tables(left), scorer, RULES) for left in (erased, random))
    assert whole.mean() - chance > 0.3 and abs(erased.mean() - chance) <= 0.1
    assert drop.ci_low is not None and drop.ci_low > 0.1
    assert drop.value and other.value is not None and abs(other.value) < 0.3 * drop.value


def test_a_vector_trained_by_gradient_has_a_part_along_it_and_raises_the_concept(
    planted: PlantedModel, writer: Writer, passages: dict[str, pa.Table]
) -> None:
    """Passages end with their first marker: behind one the model writes more than passages have.

    The embeddings of markers and the constant raise them too, so the vector is not the direction alone.
    """
    train = passages["train"].to_pylist()
    for row in train:
        encoded = writer.tokenizer(row["text"], return_offsets_mapping=True)
        places = np.flatnonzero(np.isin(encoded["input_ids"], planted.markers))
        end = encoded["offset_mapping"][places[0]][1] if len(places) else 120
        row["text"] = row["text"][max(0, end - 120) : end]
    decoder = load_decoder(resolve_model(str(planted.folder)))
    params = TrainedParams(model=str(planted.folder), layer=LAYER, num_steps=40, learning_rate=0.01)
    trained, losses = trained_direction(decoder, pa.Table.from_pylist(train, passages["train"].schema), params)
    assert np.mean(losses[-5:]) < 0.6 * np.log(2)
    random = np.random.default_rng(0).normal(size=(1000, len(trained.vector)))
    cosines = np.abs(random @ planted.direction) / np.linalg.norm(random, axis=1)
    assert trained.vector @ planted.direction > np.quantile(cosines, 0.99)
    grid = writer.grid(LAYER, trained.vector, (0.1, 0.2))
    gain = steered_gain("baseline.trained", [grid], RULES)
    assert gain.value is not None and gain.value > 0.5


def tables(scores: np.ndarray) -> tuple[pa.Table, pa.Table]:
    """Texts and scores as tables, one text for each opening."""
    ids: Mapping[str, list[str]] = {"text_id": [f"t{number}" for number in range(len(scores))]}
    prompts = {"prompt_id": [f"p{number}" for number in range(len(scores))]}
    return pa.table({**ids, **prompts}), pa.table({**ids, "scorer": [CONCEPT] * len(scores), "score": scores})
