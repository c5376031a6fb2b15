"""`stories make` against a small HTTP server that writes stories, nonsense, errors and nothing."""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml
from tests.servers.answering import answering

from poolbench_corpora.stories import read_stories
from poolbench_driver.queries import endpoint
from poolbench_driver.queries.story_requests import StoryFile

KEY = "sk-never-in-a-file"
HIGH = "<high>It was <subject>very {0}</subject> on the way to {1}.</high>"
LOW = "<low>It was <subject>not {0}</subject> on the way to {1}.</low>"
GOOD = f"Here they are:\n{HIGH}\n{LOW}\n"
#: What a subject makes the server answer; any other is answered well.
ANSWERS = {
    "untagged": "Once upon a time.",
    "torn": HIGH.replace("</subject>", "") + LOW,
    "blank": "<high> </high><low> </low>",
}


class Writer:
    """An OpenAI-compatible API that writes stories of a subject, or fails as the subject says."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.release = threading.Event()

    def answer(self, path: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        chats = path.endswith("/chat/completions")
        prompt = asked["messages"][0]["content"] if chats else asked["prompt"]
        subject = re.search(r"very much of this: (.*?)\. In the second", prompt)[1]  # type: ignore[index]
        place = re.search(r"each about (.*?)\. In", prompt)[1]  # type: ignore[index]
        asked["subject"] = subject
        self.asked[subject] += 1
        if asked["model"] == "unknown":
            return 404, {"error": {"message": "no such model"}}
        if asked["key"] == "Bearer wrong":
            return 401, {"error": {"message": f"the key {KEY} is wrong"}}
        if subject == "broken":
            return 500, {"error": {"message": "a fault"}}
        if subject == "forbidden":
            return 400, {"error": {"message": f"no: {asked['key']}"}}
        if subject == "refused":
            return 200, _written("", chats, refusal="I cannot write this.")
        if subject == "hanging":
            self.release.wait(60)
        if subject == "malformed":
            return 200, {"choices": []}
        if subject == "second" and self.asked[subject] % 2:
            return 200, _written("Once upon a time.", chats)
        return 200, _written(ANSWERS.get(subject, GOOD).format(subject, place), chats)


def _written(text: str, chats: bool, **message: str) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": text, **message}} if chats else {"text": text}
    return {"model": "writer-2026", "choices": [{"index": 0, "finish_reason": "stop", **choice}]}


Make = Callable[..., CompletedProcess[str]]


@pytest.fixture
def served() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    writer = Writer()
    with answering(writer.answer) as server:
        yield server
        writer.release.set()


@pytest.fixture
def seen(served: tuple[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What the server was asked."""
    return served[1]


@pytest.fixture
def make(driver: Any, environment: dict[str, str], served: Any, tmp_path: Path, monkeypatch: Any) -> Make:
    """``make(*arguments)``: the command in an empty folder, with a server that runs while the test does."""
    monkeypatch.chdir(tmp_path)
    where = ("--endpoint", f"{served[0]}/v1", "--model", "writer")

    def run(*arguments: str, key: str | None = KEY) -> CompletedProcess[str]:
        keys = {} if key is None else {"OPENAI_API_KEY": key}
        done: CompletedProcess[str] = driver({**environment, **keys}, "stories", "make", *where, *arguments)
        assert "Traceback" not in done.stderr
        written = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
        assert KEY not in written + done.stdout + done.stderr
        return done

    return run


def beside(name: str = "made") -> dict[str, Any]:
    facts: dict[str, Any] = yaml.safe_load(Path(f"stories/{name}.made.yaml").read_text())
    return facts


def test_stories_are_asked_for_by_three_prompts_and_read_as_a_set(make: Make, seen: list[dict[str, Any]]) -> None:
    done = make("winter", "trust", "winter", "--temperature", "0.5")
    assert done.returncode == 0, done.stderr
    assert "6 pairs of stories in stories/made.jsonl; answers of all commands: 6 ok" in done.stdout
    assert {(each["path"], each["key"], each["model"]) for each in seen} == {
        ("/v1/chat/completions", f"Bearer {KEY}", "writer")
    }
    assert {(each["max_tokens"], each["temperature"]) for each in seen} == {(1000, 0.5)}
    rows = [json.loads(line) for line in Path("stories/made.jsonl").read_text().splitlines()]
    assert {row["model"] for row in rows} == {"writer-2026"}
    assert {(row["subject"], row["prompt"]) for row in rows} == {
        (subject, name) for subject in ("winter", "trust") for name in ("neighbours", "journey", "work")
    }
    data = read_stories("made", folders=(Path("stories"),))
    assert len(data.rows) == 6 and len(data.passages) == 12 and not data.notes
    for passage in data.passages.to_pylist():
        (mark,) = passage["marks"]
        assert passage["text"][mark["start"] : mark["end"]] in {
            f"{word} {subject}" for word in ("very", "not") for subject in ("winter", "trust")
        }
    assert beside() == {
        "model": "writer", "endpoint": beside()["endpoint"], "prompts_version": 1, "pairs": 6,
        "answers": {"ok": 6}, "failed": [],
    }  # fmt: skip
    again = make("winter", "trust")
    assert again.returncode == 0 and len(seen) == 6


@pytest.mark.parametrize(
    ("subject", "kind", "asked"),
    [
        ("untagged", "no tags", 2),
        ("torn", "wrong tags", 2),
        ("blank", "empty text", 2),
        ("malformed", "malformed", 2),
        ("broken", "server error", 2),
        ("refused", "refused", 2),
        ("forbidden", "refused", 1),
        ("hanging", "timeout", 2),
    ],
)
def test_answers_that_cannot_be_used_are_counted_and_asked_for_again(
    make: Make, seen: list[dict[str, Any]], subject: str, kind: str, asked: int
) -> None:
    limit = ("--timeout", "0.2") if subject == "hanging" else ()
    done = make(subject, "--tries", "2", *limit)
    assert done.returncode == 1 and "3 pairs are missing; the same command asks for them again" in done.stderr
    assert f"no stories of {subject} (journey): {', '.join([kind] * asked)}" in done.stderr
    assert len(seen) == 3 * asked and beside()["answers"] == {kind: 3 * asked}
    assert {tuple(row["answers"]) for row in beside()["failed"]} == {(kind,) * asked}
    assert ("the endpoint refused a request: 400" in done.stderr) == (subject == "forbidden")
    make(subject, "--tries", "1", *limit)
    assert len(seen) == 3 * asked + 3 and beside()["answers"] == {kind: 3 * asked + 3}
    assert not Path("stories/made.jsonl").exists()


def test_a_second_try_may_succeed(make: Make) -> None:
    done = make("second", "--parallel", "1")
    assert done.returncode == 0
    assert beside()["answers"] == {"no tags": 3, "ok": 3} and beside()["failed"] == []


def test_what_is_written_is_not_asked_for_again_and_a_torn_line_is(make: Make, seen: list[dict[str, Any]]) -> None:
    """Another command, with another model, continues the set; a killed one may leave half a line."""
    assert make("winter", "untagged", "--tries", "1", "--name", "mine").returncode == 1
    file = Path("stories/mine.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:2]) + lines[2][:40])
    seen.clear()
    done = make("winter", "trust", "--name", "mine", "--model", "other")
    assert done.returncode == 0, done.stderr
    torn = json.loads(lines[2])["prompt"]
    assert sorted((each["subject"], each["model"]) for each in seen) == [*[("trust", "other")] * 3, ("winter", "other")]
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 6 and [row["prompt"] for row in rows if row["subject"] == "winter"].count(torn) == 1
    assert beside("mine")["answers"] == {"no tags": 3, "ok": 7}
    assert {row["subject"] for row in beside("mine")["failed"]} == {"untagged"}


def test_an_interruption_leaves_what_is_written(make: Make, monkeypatch: Any) -> None:
    add = StoryFile.add

    def interrupted(file: StoryFile, outcome: Any) -> None:
        add(file, outcome)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StoryFile, "add", interrupted)
        done = make("winter", "--parallel", "1")
    assert done.returncode == 130 and "the same command continues where this one stopped" in done.stderr
    assert beside()["pairs"] == 1 and len(Path("stories/made.jsonl").read_text().splitlines()) == 1
    assert make("winter").returncode == 0
    assert beside()["answers"] == {"ok": 3} and len(Path("stories/made.jsonl").read_text().splitlines()) == 3


def test_a_base_model_is_asked_without_a_chat(make: Make, seen: list[dict[str, Any]]) -> None:
    assert make("winter", "--completions", "--max-tokens", "300", key=None).returncode == 0
    assert {(each["path"], each["max_tokens"], each["key"]) for each in seen} == {("/v1/completions", 300, None)}


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ((), 2, "no subject: name some, such as winter, or give --input FILE"),
        (("winter", "--endpoint", "localhost:80"), 2, "give an address such as https://host/v1"),
        (("winter", "--endpoint", "http://me:word@host/v1"), 2, "without name or key"),
        (("winter", "--endpoint", "http://host/v1?key=word"), 2, "without name or key"),
        (("winter", "--temperature", "inf"), 2, "--temperature"),
        (("winter", "--endpoint", "http://127.0.0.1:9/v1"), 1, "cannot be reached"),
        (("winter", "--model", "unknown"), 1, "answered 404: it has no such model or path"),
        (("winter", "--name", "a/b"), 2, "cannot be the name of a set of stories"),
        (("winter", "--name", "planted"), 2, "cannot be the name of a set of stories"),
        (("winter", "--input", "none.txt"), 2, "none.txt"),
        (("toxicity",), 2, "sensitive"),
    ],
)
def test_mistakes_are_one_line(make: Make, arguments: tuple[str, ...], code: int, expected: str) -> None:
    done = make(*arguments)
    assert (done.returncode, expected in done.stderr) == (code, True), done.stderr


def test_a_wrong_key_stops_at_once(make: Make, seen: list[dict[str, Any]]) -> None:
    done = make("winter", "trust", "--parallel", "1", key="wrong")
    assert done.returncode == 1 and "answered 401: it does not accept the key" in done.stderr
    assert beside()["answers"] == {} and len(seen) <= 2


def test_a_key_that_cannot_be_sent_is_refused(make: Make) -> None:
    done = make("winter", key="k\u00e4y")
    assert done.returncode == 2 and "the key has characters that cannot be sent" in done.stderr


@pytest.mark.parametrize("content", ["[1]\n", "[1]\n{", '{"subject": 1', "\xff\n"])
def test_a_file_of_something_else_is_left_alone(make: Make, content: str) -> None:
    Path("stories").mkdir()
    Path("stories/made.jsonl").write_bytes(content.encode("latin-1"))
    done = make("winter")
    if content.startswith("{"):  # half a line of ours
        assert done.returncode == 0
        return
    assert done.returncode == 2 and "stories/made.jsonl, line 1: no row of a set of stories" in done.stderr
    assert Path("stories/made.jsonl").read_bytes() == content.encode("latin-1")


def test_a_set_of_a_user_without_a_last_line_end_keeps_its_rows(make: Make) -> None:
    Path("stories").mkdir()
    row = {"subject": "calm", "story1": "It was calm.", "story2": "It was not."}
    Path("stories/made.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(row)}")
    assert make("winter").returncode == 0
    rows = [json.loads(line) for line in Path("stories/made.jsonl").read_text().splitlines()]
    assert rows[:2] == [row, row] and len(rows) == 5


def test_damaged_counts_are_named(make: Make) -> None:
    assert make("winter").returncode == 0
    Path("stories/made.made.yaml").write_text("answers: [")
    done = make("winter")
    assert done.returncode == 2 and "stories/made.made.yaml is damaged: remove it" in done.stderr


def test_subjects_of_a_file_are_asked_for(make: Make, seen: list[dict[str, Any]]) -> None:
    Path("subjects.txt").write_text("winter\n\ntrust\n")
    assert make("--input", "subjects.txt").returncode == 0
    assert {each["subject"] for each in seen} == {"winter", "trust"}


def test_an_answer_without_end_is_cut(make: Make, monkeypatch: Any) -> None:
    monkeypatch.setattr(endpoint, "MAX_ANSWER", 100)
    assert make("winter", "--tries", "1").returncode == 1
    assert beside()["answers"] == {"malformed": 3}
