"""Configuration: wrong settings and names are refused with the nearest right ones; sections may be partial."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from poolbench.config import BUDGETS, resolve_layers, resolve_model
from poolbench.errors import ConfigError, LayerError, UnknownModelError, UnknownNameError
from poolbench.pooling.registry import strategies_of
from poolbench.pooling.signals import from_source
from poolbench_driver.config import ConceptsConfig, read_assignments
from poolbench_driver.contract.load import default_preset, load_run_config


def _load(tmp_path: Path, text: str, **overrides: Any) -> ConceptsConfig:
    file = tmp_path / "run.yaml"
    file.write_text(text, "utf-8")
    return load_run_config(file, overrides)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("concpts: [contrast]", "unknown setting of poolbench 'concpts'; did you mean concepts"),
        ("budget: {num_tran: 10}", "unknown setting of poolbench 'budget.num_tran'; did you mean budget.num_train"),
        ("metrics: [d4]", "metrics.0: Input should be 'd1', 'd2' or 'd3', got 'd4'"),
        ("metrics: []", "metrics"),
        ("seed: many", "got 'many'"),
        ("fold_seeds: [1, 1]", "each once"),
        ("fold_seeds: [0]", "not 0 itself"),
        ("preset: dmo", "did you mean demo"),
        ("budget: crd", "did you mean card"),
        ("budget: {reference_strength: 0.5}", "must be among null_strengths"),
        ("budget: {strengths: [0.0, 0.06, 0.125, 0.25]}", "greater than 0"),
        ("- a list", "expected a mapping"),
        ("a: [", "run.yaml"),
        ("limit: 10", "too small"),
        ("limit: many", "a whole number of passages is needed, got 'many'"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, text)
    assert expected in str(caught.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        load_run_config(tmp_path / "none.yaml", {})
    (tmp_path / "latin.yaml").write_bytes(b"model: \xff")
    with pytest.raises(ConfigError, match=r"latin\.yaml"):
        load_run_config(tmp_path / "latin.yaml", {})


def test_flags_win_over_the_file_and_the_file_over_the_preset(tmp_path: Path) -> None:
    text = "preset: full\nseed: 3\nbudget: {num_openings: 12}\ncorpus: {source: real, seed: 9}"
    config = _load(tmp_path, text, seed=4, corpus={"source": "planted"})
    assert config.seed == 4
    assert config.budget.num_openings == 12 and config.budget.strengths == BUDGETS["full"].strengths
    assert (config.corpus.source, config.corpus.seed) == ("planted", 9)


def test_a_resolved_configuration_reads_back_as_itself(tmp_path: Path) -> None:
    config = load_run_config(None, {"preset": "demo", "limit": 60, "layers": [2, 1.0]})
    text = yaml.safe_dump(config.model_dump(mode="json"))
    again = _load(tmp_path, text)
    assert again == config and again.config_hash() == config.config_hash()


def test_layers_are_indices_depths_or_names() -> None:
    assert resolve_layers([0.5, 1.0, -1, 0], 6) == [0, 2, 5]
    assert resolve_layers(["final", 5, "embedding"], 6) == [-1, 5, 6]
    assert load_run_config(None, {"layers": [0.5, "final"]}).layers == (0.5, "final")
    with pytest.raises(ConfigError, match="finale"):
        load_run_config(None, {"layers": ["finale"]})
    assert resolve_layers(None, 32) == [15, 23, 31]
    with pytest.raises(LayerError, match=r"blocks 0\.\.5; nearest 5"):
        resolve_layers([9], 6)
    with pytest.raises(LayerError, match="outside"):
        resolve_layers([1.5], 6)


def test_models_are_presets_folders_or_hub_ids(tmp_path: Path) -> None:
    assert resolve_model("meta-llama/Llama-3.1-8B").source == "meta-llama/Llama-3.1-8B"
    (tmp_path / "config.json").write_text("{}")
    local = resolve_model(str(tmp_path))
    assert local.is_local and (local.revision or "").startswith("local-")
    with pytest.raises(UnknownModelError, match="did you mean demo"):
        resolve_model("dmeo")


def _set(*texts: str, **overrides: Any) -> ConceptsConfig:
    return load_run_config(None, overrides, assignments=read_assignments(texts))


def test_single_settings_say_what_a_file_can_say(tmp_path: Path) -> None:
    text = "preset: full\nlayers: [20, .5]\nbudget: {max_tokens: 100}\ndtype: null\nlimit: 100\nsaes: []"
    named = ["layers=[20, .5]", "budget.max_tokens=100", "dtype=", "limit=100", "saes=[]", "preset=full"]
    assert _set(*named) == _load(tmp_path, text)
    sae = "saes=[{layer: 20, path: /models/sae=x, num_features: 5}]"  # only the first `=` divides
    assert _set(sae).saes[0].path == "/models/sae=x"


def test_single_settings_win_over_flags_and_the_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("preset: full\nseed: 3\ncorpus: {source: real, seed: 9}")
    named = read_assignments(["seed=5", "corpus.seed=1", "preset=full", "budget.num_openings=12"])
    config = load_run_config(tmp_path / "run.yaml", {"seed": 4, "preset": "demo"}, assignments=named)
    assert (config.seed, config.corpus.source, config.corpus.seed) == (5, "real", 1)
    assert (config.budget.name, config.budget.num_openings, config.budget.max_tokens) == ("full", 12, 200)


@pytest.mark.parametrize(
    ("text", "error", "expected"),
    [
        ("budget.max_new_tokens=100", UnknownNameError, "did you mean budget.max_tokens"),
        ("concpts=[contrast]", UnknownNameError, "did you mean concepts"),
        ("model.name=x", UnknownNameError, "unknown setting of poolbench 'model.name'"),
        ("budget", ConfigError, "write it as path=value"),
        ("layers=[1", ConfigError, "the value is not YAML"),
        ("budget.max_tokens=many", ConfigError, "budget.max_tokens: Input should be a valid integer.*got 'many'"),
        ("seed=1 seed=2", ConfigError, "--set seed is given twice"),
    ],
)
def test_a_wrong_single_setting_is_named(text: str, error: type, expected: str) -> None:
    with pytest.raises(error, match=expected):
        _set(*text.split())


@pytest.mark.parametrize(
    ("suite", "path", "value", "nearest"),
    [
        ("holmes", "concepts", ["hedging"], "corpus"),
        ("holmes", "metrics", ["d2"], "did you mean"),
        ("holmes", "keep_activations", True, "did you mean"),
        ("holmes", "budget.num_train", 70, "budget.num_bootstrap"),
        ("holmes", "corpus.seed", 4, "corpus.source"),
        ("humanoid", "strategies", ["A1_mean"], "did you mean"),
        ("humanoid", "scorer_mode", "full", "did you mean"),
        ("humanoid", "budget.num_bootstrap", 5, "num_test"),
        ("ce-bench", "layers", [2], "layer"),
        ("ce-bench", "corpus.scorer_texts", "real", "corpus.source"),
    ],
)
def test_a_setting_that_a_suite_does_not_read_is_refused(suite: str, path: str, value: Any, nearest: str) -> None:
    section, _, name = path.rpartition(".")
    settings = {section: {name: value}} if section else {name: value}
    with pytest.raises(ConfigError, match=f"unknown setting of {suite} '{path}'; .*{nearest}"):
        load_run_config(None, {"suite": suite, "preset": "demo", **settings})
    with pytest.raises(UnknownNameError, match=f"unknown setting of {suite} '{path}'"):
        _set(f"{path}={value}", suite=suite)


def test_a_limit_of_passages_is_refused_where_none_of_concepts_are_read() -> None:
    for suite in ("holmes", "humanoid", "ce-bench"):
        with pytest.raises(ConfigError, match=f"limit: this run of the suite {suite} reads no passages of concepts"):
            load_run_config(None, {"suite": suite, "preset": "demo", "limit": 60})
    named = {"suite": "humanoid", "concepts": ["hedging"], "limit": 60}
    assert load_run_config(None, named).budget.num_train == 30


@pytest.mark.parametrize(
    "settings", [{"budget.num_test": 30}, {"corpus.source": "real"}, {"corpus.seed": 1}, {"keep_activations": True}]
)
def test_settings_of_passages_are_refused_where_none_are_read(settings: dict[str, Any]) -> None:
    ((path, value),) = settings.items()
    named = path if path.startswith("budget") else path.partition(".")[0]
    with pytest.raises(ConfigError, match=f"{named}: this run of the suite humanoid reads no passages"):
        _set(f"{path}={value}", suite="humanoid")
    if path != "keep_activations":
        assert _set(f"{path}={value}", "sets=[planted-pos]", suite="ce-bench")


@pytest.mark.parametrize(
    ("suite", "settings", "config_hash"),
    [
        ("holmes", {}, "53aff8f891761984"),
        ("holmes", {"seed": 3, "layers": [2]}, "2d6077d8ecae1617"),
        ("holmes", {"corpus": {"source": "real"}}, "bcde644432097dc9"),
        ("holmes", {"sets": ["planted-pos"]}, "7e81f529de48a917"),
        ("holmes", {"control": ["word_order"]}, "e70d68c6ed048dc0"),
        ("humanoid", {}, "2c54252c2d896327"),
        ("humanoid", {"seed": 3, "layers": [2]}, "40a7c05cd54692ab"),
        ("humanoid", {"limit": 60, "concepts": ["hedging"]}, "947c937df500e8f4"),
        ("humanoid", {"corpus": {"source": "real"}, "concepts": ["hedging"]}, "fe36697a2570ff9c"),
        ("humanoid", {"concepts": ["hedging"]}, "f19ae60e1118bfad"),
        ("ce-bench", {}, "7e99801f8dc6f828"),
        ("ce-bench", {"limit": 60, "concepts": ["hedging"]}, "bdc4d790784bdf23"),
        ("ce-bench", {"corpus": {"source": "real"}, "concepts": ["hedging"]}, "71cfd9b55b3245d4"),
        ("ce-bench", {"concepts": ["hedging"]}, "28e0a4b5bb203228"),
        ("ce-bench", {"sets": ["planted-pos"]}, "5bc08635c5720278"),
    ],
)
def test_settings_that_went_leave_the_hashes_of_runs(suite: str, settings: dict[str, Any], config_hash: str) -> None:
    """Recorded while every suite of concepts had the settings of all."""
    assert load_run_config(None, {"suite": suite, "preset": "demo", **settings}).config_hash() == config_hash


PRETRAINED = {"model": "smollm2-135m"}
CORPUS_BY_DEFAULT = [
    ("poolbench", {"preset": "small"}, "real"),
    ("poolbench", {"preset": "demo", **PRETRAINED}, "real"),
    ("poolbench", {"preset": "full", "model": "owner/decoder", "corpus": {"seed": 1}}, "real"),
    ("poolbench", {"preset": "full", "model": "owner/decoder", "corpus": {"source": "planted"}}, "planted"),
    ("poolbench", PRETRAINED, "real"),
    ("poolbench", {"preset": "demo"}, "planted"),
    ("poolbench", {"preset": "small", "model": "demo"}, "planted"),
    ("poolbench", {"preset": "card", "model": "llama-3.1-8b"}, "corpora/published"),
    ("holmes", {"preset": "small", **PRETRAINED}, "real"),
    ("holmes", {"preset": "small", **PRETRAINED, "sets": ["planted-pos"]}, "planted"),
    ("data-requirements", {"preset": "demo", **PRETRAINED}, "real"),
    ("data-requirements", {"preset": "demo", **PRETRAINED, "sets": ["planted-role"]}, "planted"),
    ("ce-bench", {"preset": "demo", **PRETRAINED, "concepts": ["hedging"]}, "real"),
    ("ce-bench", {"preset": "demo", **PRETRAINED}, "planted"),
    ("humanoid", {"preset": "demo", **PRETRAINED, "concepts": ["hedging"]}, "real"),
]


@pytest.mark.parametrize(("suite", "settings", "source"), CORPUS_BY_DEFAULT)
def test_a_pretrained_model_reads_real_text_unless_settings_name_another(
    suite: str, settings: dict[str, Any], source: str
) -> None:
    assert load_run_config(None, {"suite": suite, **settings}).corpus.source == source


def test_stories_and_sets_of_a_pretrained_model_are_real_by_default() -> None:
    ce_bench = {"suite": "ce-bench", "preset": "demo", **PRETRAINED}
    assert load_run_config(None, ce_bench).stories == "real"
    assert load_run_config(None, {**ce_bench, "stories": "planted"}).stories == "planted"
    needs = load_run_config(None, {"suite": "data-requirements", "preset": "demo", **PRETRAINED})
    assert all(name.startswith("ewt-") for name in needs.sets)


def test_a_pretrained_model_starts_from_the_preset_small() -> None:
    assert [default_preset(settings) for settings in ({}, {"model": "planted"}, PRETRAINED)] == [
        "demo",
        "demo",
        "small",
    ]


def test_the_small_preset_has_the_cards_strategies_without_a_backward_pass() -> None:
    card = [spec for spec in strategies_of("card") if not spec.on_request and not from_source("loss", spec.needs)]
    assert [spec.id for spec in card] == list(load_run_config(None, {"preset": "small"}).strategies or ())


def test_what_is_done_with_sinks_is_recorded_where_it_is_not_the_default() -> None:
    assert ConceptsConfig().sink_settings == {}
    assert ConceptsConfig(sinks="include", sink_ratio=5.0).sink_settings == {"sinks": "include", "sink_ratio": 5.0}


@pytest.mark.parametrize(
    "given", [{"preset": "card", "model": "demo"}, {"preset": "demo", "protocol": "published"}, {"budget": "full"}]
)
def test_the_published_protocol_reads_and_steers_as_the_reference_does(given: dict[str, Any]) -> None:
    config = load_run_config(None, {"protocol": "published", **given})
    assert (config.sinks, config.include_bos, config.steering.positions) == ("include", True, "all")
    budget = config.budget
    assert (budget.alpha_unit, budget.strengths[0], budget.strengths[-1]) == ("absolute", 0.25, 3.0)
    assert (budget.opening_set, budget.num_openings) == ("published-10", 10)
    assert load_run_config(None, {**given, "protocol": "corrected"}).budget.alpha_unit == "residual_norm"


def test_settings_win_over_those_of_the_protocol() -> None:
    settings = {"sinks": "exclude", "budget": {"num_openings": 3}, "steering": {"positions": "generated"}}
    config = load_run_config(None, {"protocol": "published", **settings})
    assert (config.sinks, config.budget.num_openings, config.steering.positions) == ("exclude", 3, "generated")
    assert config.budget.alpha_unit == "absolute"


def test_a_record_of_a_run_before_lazy_reading_is_still_that_run(tmp_path: Path) -> None:
    whole = load_run_config(None, {"preset": "demo", "steering": {"reading": "whole"}})
    record = whole.model_dump(mode="json")
    del record["steering"]["reading"]
    file = tmp_path / "config.resolved.yaml"
    file.write_text(yaml.safe_dump(record))
    assert load_run_config(file, {}) == whole
    file.write_text(yaml.safe_dump({"preset": "demo", "steering": {"temperature": 0.5}}))
    assert load_run_config(file, {}).steering.reading == "lazy"  # type: ignore[attr-defined]


def test_published_definitions_need_whole_curves() -> None:
    with pytest.raises(ConfigError, match=r"steering\.reading must be whole"):
        load_run_config(None, {"preset": "demo", "protocol": "published", "steering": {"reading": "lazy"}})
