"""A second judge: ratings of a small HTTP server, and of files, as figures of the card."""

import csv
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.servers.answering import answering

from poolbench.errors import ConfigError, CorpusError, InputError
from poolbench_driver.find.held_out import HeldOutText
from poolbench_driver.find.judge import RATINGS, TO_RATE, Judge, number_in, read_ratings
from poolbench_driver.find.page import search_page
from poolbench_driver.measures.response import SteeringRules
from poolbench_driver.pages.text import json_of
from poolbench_driver.queries.endpoint import EndpointModel
from poolbench_driver.vectors.card import CardMeasure

from .test_damage import result

KEY, RULES = "sk-never-in-a-file", SteeringRules(num_bootstrap=2000)


def held_out(num: int = 8, rng: np.random.Generator | None = None) -> list[HeldOutText]:
    """Texts whose content ends with the rating that the server gives; the steered ones rate higher."""
    rng = rng or np.random.default_rng(0)
    texts = []
    for number in range(num):
        for is_steered in (True, False):
            rating = int(rng.integers(0, 6)) + 3 * is_steered
            score = float(np.clip(rating / 10 + rng.normal(0, 0.1), 0, 1))
            name = f"{number * 2 + is_steered:020x}"[::-1]
            content = f"It went on, rate {rating}"
            texts.append(HeldOutText(name, f"o{number}", f"Opening {number}", content, is_steered, score))
    return texts


def rating_of(text: HeldOutText) -> float:
    return float(text.text.rpartition(" ")[2])


def honest(prompt: str) -> tuple[int, str]:
    return 200, prompt.partition("rate ")[2].partition("</text>")[0]


@pytest.fixture
def served() -> Iterator[Callable[..., tuple[EndpointModel, list[dict[str, Any]]]]]:
    """`served(answer)`: a model behind an OpenAI-compatible chat that answers a prompt so, and what it was asked."""
    with ExitStack() as servers:

        def serve(answer: Callable[[str], tuple[int, str]]) -> tuple[EndpointModel, list[dict[str, Any]]]:
            def chat(path: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
                asked["prompt"] = asked["messages"][0]["content"]
                status, content = answer(asked["prompt"])
                refusal = "I cannot" if content == "refuse" else None
                return status, {"choices": [{"message": {"role": "assistant", "content": content, "refusal": refusal}}]}

            address, seen = servers.enter_context(answering(chat))
            settings = {"key": KEY, "tries": 2, "temperature": 0.0, "timeout_s": 20.0}
            return EndpointModel(f"{address}/v1", "judge-1", **settings), seen

        yield serve


def figures(judge: Judge, texts: list[HeldOutText], lines: list[str] | None = None) -> dict[str, CardMeasure]:
    said = [] if lines is None else lines
    return {measure.name: measure for measure in judge.measures(texts, "contrast", RULES, said.append)}


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_figures_are_those_by_hand_and_the_judge_is_blind(served: Any, tmp_path: Path) -> None:
    texts = held_out(12)
    model, seen = served(honest)
    measures = figures(Judge(tmp_path, model), texts)
    steered, unsteered = ([text for text in texts if text.is_steered is side] for side in (True, False))
    rises = np.array([rating_of(a) - rating_of(b) for a, b in zip(steered, unsteered, strict=True)]) / 10
    gain, agreement = measures["judge.gain"], measures["judge.agreement"]
    assert gain.value == pytest.approx(rises.mean()) and gain.n == 12
    reach = stats.t.ppf(0.975, 11) * rises.std(ddof=1) / np.sqrt(12)
    assert gain.ci_low == pytest.approx(rises.mean() - reach, abs=0.2 * reach)
    assert gain.ci_high == pytest.approx(rises.mean() + reach, abs=0.2 * reach)
    by_hand = stats.spearmanr([rating_of(text) for text in texts], [text.score for text in texts]).statistic
    assert agreement.value == pytest.approx(by_hand) and agreement.n == 24
    assert agreement.ci_low is not None and agreement.ci_high is not None
    assert agreement.ci_low < by_hand < agreement.ci_high
    assert measures["judge.left_out"].value == 0 and measures["judge.left_out"].reason is None
    # Every text once, in another order than that of the openings, with nothing that tells the sides apart.
    assert len(seen) == 24 and {each["temperature"] for each in seen} == {0.0}
    assert {each["path"] for each in seen} == {"/v1/chat/completions"} and seen[0]["model"] == "judge-1"
    prompts = [each["prompt"] for each in seen]
    assert all("The concept is contrast: " in prompt and "from 0 " in prompt for prompt in prompts)
    places = [int(prompt.partition("Opening ")[2].partition("<")[0]) for prompt in prompts]
    assert places != sorted(places)
    frames = {prompt.replace(text.prompt, "").replace(text.text, "") for text in texts for prompt in prompts
              if f">{text.prompt}<" in prompt and f">{text.text}<" in prompt}  # fmt: skip
    assert len(frames) == 1 and "steer" not in frames.pop()


def test_the_interval_of_the_gain_covers(tmp_path: Path) -> None:
    rng, covered = np.random.default_rng(5), 0
    for _ in range(100):
        texts = held_out(16, rng)
        file = tmp_path / "r.csv"
        file.write_text("text_id,rating\n" + "".join(f"{text.text_id},{rating_of(text)}\n" for text in texts))
        gain, *_ = Judge(tmp_path, file=file).measures(texts, "contrast", SteeringRules(num_bootstrap=200), str)
        assert gain.ci_low is not None and gain.ci_high is not None
        covered += gain.ci_low <= 0.3 <= gain.ci_high
    assert 89 <= covered <= 100


def test_the_same_judge_is_not_asked_again_and_another_is(served: Any, tmp_path: Path) -> None:
    texts, lines = held_out(), list[str]()
    model, seen = served(honest)
    first = figures(Judge(tmp_path, model), texts, lines)
    rows = table(tmp_path / RATINGS)
    assert {row["text_id"]: float(row["rating"]) for row in rows} == {t.text_id: rating_of(t) for t in texts}
    assert len(seen) == 16 and lines == [f"asking judge-1 at {model.endpoint} for 16 ratings"]
    assert figures(Judge(tmp_path, replace(model)), texts) == first and len(seen) == 16
    assert figures(Judge(tmp_path, file=tmp_path / RATINGS), texts)["judge.gain"] == first["judge.gain"]
    figures(Judge(tmp_path, replace(model, model="judge-2")), texts)
    assert len(seen) == 32 and len(table(tmp_path / RATINGS)) == 32


def test_an_interruption_leaves_what_was_rated(served: Any, tmp_path: Path) -> None:
    def stop(line: str) -> None:
        if "are rated" in line:
            raise KeyboardInterrupt

    texts = held_out(14)
    model, seen = served(honest)
    with pytest.raises(KeyboardInterrupt):
        Judge(tmp_path, model).measures(texts, "contrast", RULES, stop)
    rated = {row["text_id"] for row in table(tmp_path / RATINGS)}
    assert len(rated) == 20
    assert figures(Judge(tmp_path, replace(model)), texts)["judge.gain"].n == 14
    forms = {text.text_id: f"<opening>{text.prompt}</opening>\n\n<text>{text.text}</text>" for text in texts}
    for text_id, form in forms.items():  # requests under way may arrive after the interruption, of other texts alone
        alike = [other for other, its_form in forms.items() if its_form == form]
        if text_id in rated and rated.issuperset(alike):
            assert sum(form in request["prompt"] for request in seen) == len(alike)


@pytest.mark.parametrize(
    ("status", "content", "reason"),
    [
        (200, "I would say it is rather strong", "is not a number from 0 to 10"),
        (200, "refuse", "refused"),
        (500, "", "server error"),
        (400, KEY, "refused 400"),
    ],
)
def test_texts_without_a_rating_are_left_out_and_counted(
    served: Any, tmp_path: Path, status: int, content: str, reason: str
) -> None:
    texts = held_out()
    lost = texts[0]

    def answer(prompt: str) -> tuple[int, str]:
        return (status, content) if f">{lost.prompt}<" in prompt and f">{lost.text}<" in prompt else honest(prompt)

    model, seen = served(answer)
    measures = figures(Judge(tmp_path, model), texts)
    left_out = measures["judge.left_out"]
    assert (left_out.value, left_out.n, measures["judge.gain"].n) == (1, 16, 7)
    assert reason in str(left_out.reason) and KEY not in str(left_out.reason)
    assert len(seen) == 16 + (status != 400)  # asked twice, unless the request itself is wrong
    # The same command asks for this text alone.
    assert figures(Judge(tmp_path, replace(model)), texts)["judge.gain"].n == 7
    assert len(seen) == 2 * (16 + (status != 400)) - 15


def test_a_judge_that_is_always_wrong_is_given_up_and_the_figure_is_null(served: Any, tmp_path: Path) -> None:
    model, seen = served(lambda prompt: (200, "As a language model, I"))
    (measure,) = figures(Judge(tmp_path, model), held_out(30)).values()
    assert measure.status == "too_few" and measure.value is None and measure.name == "judge.gain"
    assert "0 openings have ratings of both texts; 4 are needed; first error: the answer 'As a" in str(measure.reason)
    assert 16 <= len(seen) <= 28  # of 120


def test_a_refused_key_ends_at_once_and_stands_nowhere(
    served: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    model, seen = served(lambda prompt: (401, f"the key {KEY} is wrong"))
    lines = list[str]()
    (measure,) = figures(Judge(tmp_path, model), held_out(), lines).values()
    assert measure.status == "too_few" and "answered 401" in str(measure.reason)
    assert len(seen) <= 8 and {each["key"] for each in seen} == {f"Bearer {KEY}"}
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    captured = capfd.readouterr()
    assert KEY not in written + repr(model) + str(lines) + str(measure) + caplog.text + captured.out + captured.err


def test_without_a_model_the_endpoint_decides(served: Any, tmp_path: Path) -> None:
    model, seen = served(honest)
    judge = Judge(tmp_path, replace(model, model="", key=None))
    figures(judge, held_out())
    assert all("model" not in each and each["key"] is None for each in seen)
    assert judge.name == f"the model at {model.endpoint}"


def test_ratings_that_do_not_vary_agree_with_nothing(served: Any, tmp_path: Path) -> None:
    model, _ = served(lambda prompt: (200, "5"))
    measures = figures(Judge(tmp_path, model), held_out())
    assert measures["judge.gain"].value == 0 and measures["judge.agreement"].status == "collapsed"


def test_no_judge_is_a_null_and_the_texts_can_be_rated(tmp_path: Path) -> None:
    texts = held_out(6)
    texts[0] = replace(texts[0], text='A "quoted", text\nof two lines\r with \0 NUL')
    (measure,) = figures(Judge(tmp_path), texts).values()
    assert (measure.name, measure.status) == ("judge.gain", "no_judge") and Judge(tmp_path).name is None
    assert "--judge" in str(measure.reason) and "--ratings" in str(measure.reason)
    rows = table(tmp_path / TO_RATE)
    assert list(rows[0]) == ["text_id", "opening", "text"] and len(rows) == 12
    by_id = {text.text_id: text for text in texts}
    assert {row["text_id"]: row["opening"] for row in rows} == {name: text.prompt for name, text in by_id.items()}
    sides = [by_id[row["text_id"]].is_steered for row in rows]
    assert sides not in (sorted(sides), sorted(sides, reverse=True))
    assert [row["text_id"] for row in rows] != sorted(by_id)
    figures(Judge(tmp_path), texts)
    assert table(tmp_path / TO_RATE) == rows  # the same order
    # People add a column to this very file; the next search does not overwrite it.
    with (tmp_path / TO_RATE).open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "rating"])
        writer.writeheader()
        writer.writerows(row | {"rating": "3" if number else ""} for number, row in enumerate(rows))
    figures(Judge(tmp_path), texts)
    measures = figures(Judge(tmp_path, file=tmp_path / TO_RATE), texts)
    assert measures["judge.gain"].value == 0 and measures["judge.gain"].n == 5
    assert measures["judge.left_out"].value == 1 and "lacks the rating" in str(measures["judge.left_out"].reason)


def test_several_samples_of_an_opening_are_judged_once(tmp_path: Path) -> None:
    texts = held_out(5)
    more = [replace(text, text_id=f"more-{text.text_id}", sample=1) for text in texts]
    figures(Judge(tmp_path), [*more, *texts])
    assert {row["text_id"] for row in table(tmp_path / TO_RATE)} == {text.text_id for text in texts}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text_id,rating\n{0},5\nstranger,3\n", r"ratings\.csv: no text of this vector has the id 'stranger'"),
        ("text_id,rating\n{0},5\n" + "".join(f"x{n},1\n" for n in range(7)), "'x4' and 2 more"),
        ("text_id,rating\n{0},high\n", "line 2, column 'rating': 'high' is not a number"),
        ("text_id,rating\n{0},-1\n", "the rating is -1"),
        ("text_id,rating\n{0},12\n", "line 2: the rating is 12; it must be from 0 to 10"),
        ("text_id,score\n{0},1\n", "no column 'rating'"),
        ("text_id,rating\n{0},\n", "no text has a rating"),
    ],
)
def test_wrong_ratings_are_refused_with_file_and_line(tmp_path: Path, content: str, message: str) -> None:
    texts, file = held_out(), tmp_path / "ratings.csv"
    file.write_text(content.format(texts[0].text_id))
    with pytest.raises(InputError, match=message):
        figures(Judge(tmp_path, file=file), texts)


def test_ratings_of_several_people_are_averaged_and_few_are_a_null(tmp_path: Path) -> None:
    texts, file = held_out(), tmp_path / "people.csv"
    file.write_text(f"rating;text_id\n4;{texts[0].text_id}\n5;{texts[0].text_id}\n7;{texts[1].text_id}\n")
    assert read_ratings(file) == {texts[0].text_id: 4.5, texts[1].text_id: 7}
    (measure,) = figures(Judge(tmp_path, file=file), texts).values()
    assert measure.status == "too_few" and "1 openings have ratings of both texts" in str(measure.reason)
    with pytest.raises(CorpusError, match="no such file"):
        Judge(tmp_path, file=tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("answer", "rating"),
    [("7", 7), (" 7.5\n", 7.5), ("**8**", 8), ("Rating: 6", 6), ("3/10", 3), ("10.", 10),
     ("<think>9? No.</think>\n2", 2),
     ("", None), ("seven", None), ("7 or 8", None), ("10.5", None), ("1e1", None), ("nan", None), ("5 0", None)],
)  # fmt: skip
def test_numbers_in_answers(answer: str, rating: float | None) -> None:
    if rating is None:
        with pytest.raises(CorpusError, match="is not a number from 0 to 10"):
            number_in(answer)
    else:
        assert number_in(answer) == rating


def test_options_that_do_not_fit_are_refused_before_any_work(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("text_id,rating\na,1\n")
    ratings = ("--ratings", str(tmp_path / "r.csv"))
    for arguments, message in [
        (("--judge", "http://host/v1", *ratings), "--judge and --ratings: name one of them"),
        (("--judge-model", "m"), "belong to --judge"),
        (("--judge", "http://host/v1", "--judge-key-env", "NO_SUCH_KEY"), "this environment variable is not set"),
        (("--judge", "host"), "give an address such as https://host/v1"),
        (("--ratings", str(tmp_path / "none.csv")), "no such file"),
        (("--paraphrases", str(tmp_path / "p.jsonl")), "--paraphrases and --with belong to --robustness"),
        (("--with", str(tmp_path)), "--paraphrases and --with belong to --robustness"),
    ]:
        done = cli("find", "contrast", "--output", str(tmp_path / "v"), *arguments)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    with pytest.raises(ConfigError, match="name one of them"):
        Judge(tmp_path, EndpointModel("http://host/v1", "m"), tmp_path / "r.csv")


def with_measures(*measures: CardMeasure) -> str:
    search = result()
    card = search.vector.card.model_copy(update={"measures": measures, "judge": "judge-1 at http://host/v1"})
    page = search_page(replace(search, vector=replace(search.vector, card=card)))
    assert json_of(page)
    return "\n".join([*page.answer.sentences, *(problem.text for problem in page.problems)])


def test_the_page_says_what_the_judge_says() -> None:
    confirmed = with_measures(CardMeasure(name="judge.gain", value=0.2, ci_low=0.1, ci_high=0.3, n=8))
    assert "A second judge, judge-1 at http://host/v1, rates these texts +0.200" in confirmed
    assert "does not confirm" not in confirmed
    doubted = with_measures(CardMeasure(name="judge.gain", value=0.1, ci_low=-0.1, ci_high=0.3, n=8))
    assert "The second judge does not confirm the gain: its interval holds 0" in doubted
    null = with_measures(CardMeasure(name="judge.gain", status="no_judge", reason="name an endpoint with --judge"))
    assert "No second judge confirms it: name an endpoint with --judge." in null
    moved = with_measures(
        CardMeasure(name="side_effects.hedging", value=-0.2, ci_low=-0.3, ci_high=-0.1),
        CardMeasure(name="side_effects.narrative", value=0.0, ci_low=-0.1, ci_high=0.1),
        CardMeasure(name="side_effects.modality", status="no_scorer", reason="none"),
    )
    assert "It moves hedging too, by -0.200" in moved and "narrative" not in moved and "modality" not in moved
