"""Probing sets of the real-text archives: on small files written here, and on the archives where they are at hand."""

import io
import json
import os
import re
import zipfile
from collections import Counter, defaultdict
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml
from recipes.probing_sets.catalog import SETS, archive_sets, read_set
from recipes.probing_sets.readers.gum import mentions
from recipes.probing_sets.readers.rhetoric import LABELS, distance, path_to_root, units
from recipes.probing_sets.readers.scope import Cues, scope
from recipes.probing_sets.readers.sentences import (
    PROPERTIES,
    bigram_shift,
    coordination_inversion,
    depth,
    tense,
    voice,
)
from recipes.probing_sets.readers.treebank import Sentence, parse_conllu

from poolbench.errors import ConfigError
from poolbench_corpora.probing import ProbingData, ProbingSet

pytestmark = pytest.mark.lane(name="recipes")

ARCHIVES = os.environ.get("POOLBENCH_REAL_TEXT", "")
needs_archives = pytest.mark.skipif(not ARCHIVES, reason="POOLBENCH_REAL_TEXT names no folder of archives")


def conllu(sentence: str, text: str, rows: list[str], document: str = "") -> str:
    """A sentence; each row has form, tag, features, head, relation and misc, separated by spaces."""
    lines = [f"# newdoc id = {document}"] if document else []
    lines += [f"# sent_id = {sentence}", "# summary = not read", f"# text = {text}"]
    for number, row in enumerate(rows, start=1):
        form, tag, features, head, relation, misc = row.split(" ")
        lines.append("\t".join([str(number), form, form.lower(), tag, tag, features, head, relation, "_", misc]))
    return "\n".join(lines) + "\n\n"


CROW = conllu(
    "s1",
    "The crows weren't fed by her, but she sang.",
    [
        "The DET _ 2 det _",
        "crows NOUN Number=Plur 5 nsubj:pass _",
        "were AUX Tense=Past|VerbForm=Fin 5 aux:pass _",
        "n't PART _ 5 advmod _",
        "fed VERB Tense=Past|VerbForm=Part 0 root _",
        "by ADP _ 7 case _",
        "her PRON _ 5 obl SpaceAfter=No",
        ", PUNCT _ 11 punct _",
        "but CCONJ _ 11 cc _",
        "she PRON _ 11 nsubj _",
        "sang VERB Tense=Past|VerbForm=Fin 5 conj SpaceAfter=No",
        ". PUNCT _ 5 punct _",
    ],
    "d1",
)
CAT = conllu(
    "s2",
    "Cats see a dog now",
    [
        "Cats NOUN Number=Plur 2 nsubj _",
        "see VERB Tense=Pres|VerbForm=Fin 0 root _",
        "a DET _ 4 det _",
        "dog NOUN Number=Sing 2 obj _",
        "now ADV _ 2 advmod _",
    ],
)


def sentences(*texts: str, name: str = "ud/en-ud-train.conllu") -> list[Sentence]:
    found = list(parse_conllu("".join(texts), name))
    assert all(found)
    return [each for each in found if each is not None]


def test_words_have_their_places() -> None:
    crow, cat = sentences(CROW, CAT)
    assert [crow.text[word.start : word.end] for word in crow.words] == [word.form for word in crow.words]
    assert (crow.id, crow.document, crow.split, cat.document) == ("s1", "d1", "train", "d1")
    assert crow.root() == 4 and crow.children(4, "nsubj:pass", "conj") == [1, 10]
    assert crow.subtree(10) == [7, 8, 9, 10] and crow.span(9, 11).words == "she sang"
    assert sentences(CAT, name="gum/GUM_news.conllu")[0].split is None


def test_empty_nodes_and_multiword_tokens_are_no_words() -> None:
    lines = CAT.replace("1\tCats", "1-2\tCats see" + "\t_" * 8 + "\n1\tCats")
    lines = lines.replace("3\ta\t", "2.1\tsaw" + "\t_" * 8 + "\n3\ta\t")
    assert sentences(lines) == sentences(CAT)


def test_properties_of_trees() -> None:
    crow, cat = sentences(CROW, CAT)
    assert (voice(crow), voice(cat)) == ("passive", "active")
    assert (tense(crow), tense(cat)) == ("Past", "Pres")
    assert (depth(crow), depth(cat)) == (3, 3)  # fed > sang > she; see > dog > a
    assert (PROPERTIES["subject_number"](crow), PROPERTIES["object_number"](crow)) == ("Plur", None)
    assert (PROPERTIES["subject_number"](cat), PROPERTIES["object_number"](cat)) == ("Plur", "Sing")
    assert PROPERTIES["length"](crow) == 12


def test_rewritten_sentences() -> None:
    crow, cat = sentences(CROW, CAT)
    assert coordination_inversion(crow) == "She sang, but the crows weren't fed by her."
    assert coordination_inversion(cat) is None
    assert bigram_shift(cat) in ("Cats a see dog now", "Cats see dog a now")


def test_mentions_of_entities() -> None:
    rows = [
        "The DET _ 2 det Entity=(4-person-new-nnnnn-cf1-2-coref",
        "cat NOUN _ 5 nsubj Entity=4)",
        "of ADP _ 4 case _",
        "Rome PROPN _ 2 nmod Entity=(7-place-new-nnnnn-cf2-1-sgl-Rome)",
        "saw VERB _ 0 root _",
        "its PRON _ 7 nmod Entity=(9-object-new-nnnnn-cf3-2-sgl(4-person-giv:act-nnnnn-cf1*-1-ana)",
        "own ADJ _ 8 amod _",
        "tail NOUN _ 5 obj Entity=9)",
        "off ADV _ 5 advmod Entity=(8[1/2]-event-new-nnnnn-cf4-1-sgl)",
    ]
    found = mentions(sentences(conllu("s", "The cat of Rome saw its own tail off", rows, "d")))
    assert [(each.entity, each.kind, each.span.words) for each in found] == [
        ("4", "person", "The cat"),
        ("7", "place", "Rome"),
        ("9", "object", "its own tail"),
        ("4", "person", "its"),
    ]


#: Four units: the first is the root, "but Bo stayed" contrasts with it, and each has one below it.
RHETORIC = conllu(
    "g1",
    "Al left when it rained",
    [
        "Al PROPN _ 2 nsubj Discourse=ROOT:1:0",
        "left VERB _ 0 root _",
        "when ADV _ 5 mark Discourse=context-circumstance:2->1:0:dm-when-3-gold;joint-list:2->4:1:_",
        "it PRON _ 5 nsubj _",
        "rained VERB _ 2 advcl _",
    ],
    "d",
) + conllu(
    "g2",
    "but Bo stayed to read",
    [
        "but CCONJ _ 3 cc Discourse=adversative-contrast_m:3->1:1:_",
        "Bo PROPN _ 3 nsubj _",
        "stayed VERB _ 0 root _",
        "to PART _ 5 mark Discourse=purpose-goal:4->3:0:_",
        "read VERB _ 3 advcl _",
    ],
)


def test_rhetorical_structure() -> None:
    document = sentences(RHETORIC, name="gum/GUM_news.conllu")
    by_number = units(document)
    assert [(unit.number, unit.head, unit.relation, unit.is_equal, unit.span.words) for unit in by_number.values()] == [
        (1, None, "", False, "Al left"),
        (2, 1, "context-circumstance", False, "when it rained"),
        (3, 1, "adversative-contrast", True, "but Bo stayed"),
        (4, 3, "purpose-goal", False, "to read"),
    ]
    assert path_to_root(4, by_number) == [4, 3, 1]
    assert [distance(first, second, by_number) for first, second in ((1, 1), (1, 4), (2, 4), (3, 4))] == [0, 2, 3, 1]
    without_root = {number: unit for number, unit in by_number.items() if number > 1}
    assert path_to_root(2, without_root) is None and distance(3, 2, without_root) is None

    def answers(label: str) -> list[object]:
        samples = LABELS[label](document, by_number)
        return [sample.value if sample.label is None else sample.label for sample in samples]

    assert answers("relation") == ["context-circumstance", "adversative-contrast", "purpose-goal"]
    assert answers("relation_group") == ["context", "adversative", "purpose"]
    assert answers("nuclearity") == ["nucleus", "satellite", "nucleus", "satellite"]
    assert answers("depth") == [0, 1, 1, 2] and answers("count") == [2, 2]
    assert len(answers("distance")) == 2 and answers("successive") == []  # no sentence further on


#: Whether the adverbial clause is inside of the scope, the rule does not say.
NEGATED = conllu(
    "n1",
    "We think Sam did not eat hot soup because it burned",
    [
        "We PRON _ 2 nsubj _",
        "think VERB _ 0 root _",
        "Sam PROPN _ 6 nsubj _",
        "did AUX _ 6 aux _",
        "not PART _ 6 advmod _",
        "eat VERB _ 2 ccomp _",
        "hot ADJ _ 8 amod _",
        "soup NOUN _ 6 obj _",
        "because SCONJ _ 11 mark _",
        "it PRON _ 11 nsubj _",
        "burned VERB _ 6 advcl _",
    ],
)


def test_scopes() -> None:
    negation, speculation = Cues({"not": "advmod", "never": "advmod"}), Cues({}, ["seem"], ["think"])
    (negated,) = sentences(NEGATED)
    sides = scope(negated, negation)
    assert sides is not None and negated.words[sides.cue].form == "not"
    assert [negated.words[index].form for index in sides.inside] == ["Sam", "did", "eat", "hot", "soup"]
    assert [negated.words[index].form for index in sides.outside] == ["We", "think"]
    _, cat = sentences(CROW, CAT)
    assert scope(cat, negation) is None and scope(negated, speculation) is None  # `think` is doubtful
    (two,) = sentences(NEGATED.replace("We\twe\tPRON", "We\tnever\tPRON"))
    assert scope(two, negation) is None
    hedged = NEGATED.replace("think\tthink", "think\tseem").replace("not\tnot", "not\tso")
    (seeming,) = sentences(hedged)
    of_complement = scope(seeming, speculation)
    assert of_complement is not None and seeming.words[of_complement.cue].form == "think"
    assert [seeming.words[index].form for index in of_complement.outside] == ["We"]


@pytest.mark.parametrize("name", ["comparison-age", "comparison-number"])
def test_comparisons(name: str) -> None:
    definition = ProbingSet.model_validate(yaml.safe_load((SETS / f"{name}.yaml").read_text("utf-8")))
    data = read_set(definition)
    bags: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    numbers: defaultdict[str, set[int]] = defaultdict(set)
    splits = dict(zip(data.instances["group"].to_pylist(), data.instances["split"].to_pylist(), strict=True))
    for text, label, group in labelled(data):
        first, second = map(int, re.findall(r"\d+", text))
        is_less = "younger" in text or "smaller" in text
        assert label == ("true" if (first < second if is_less else first > second) else "false")
        bags[tuple(sorted(text.split()))].append(label)
        numbers[splits[group]] |= {first, second}
    # A bag of words says nothing: each is once true and once false. No number is in two splits.
    assert all(sorted(labels) == ["false", "true"] for labels in bags.values())
    assert numbers.keys() == {"train", "dev", "test"}
    assert not (numbers["train"] & numbers["test"] or numbers["train"] & numbers["dev"])
    with pytest.raises(ConfigError, match=r"needs \{first\} and \{second\}"):
        wrong = {**definition.parameters, "less": "{first} is less."}
        read_set(definition.model_copy(update={"parameters": wrong}))
    with pytest.raises(ConfigError, match="numbers 1 to 20; at least 30"):
        read_set(definition.model_copy(update={"parameters": {**definition.parameters, "numbers": [1, 20]}}))


@needs_archives
@pytest.mark.parametrize("name", ["ewt-negation-scope", "ewt-speculation-scope"])
def test_a_word_alone_does_not_tell_its_side(name: str) -> None:
    rows = read_set(named(name)).instances.to_pylist()
    labels: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row["split"] == "train":
            labels[row["word"]][row["label"]] += 1
    test = [row for row in rows if row["split"] == "test"]
    right = [(labels[row["word"]].most_common(1) or [("inside", 0)])[0][0] == row["label"] for row in test]
    assert sum(right) / len(test) < 0.6


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    """Unpacked archives with two paradigms and a small treebank."""
    pairs = [{"sentence_good": f"Good {n}.", "sentence_bad": f"Bad {n}.", "UID": "x"} for n in range(3)]
    (tmp_path / "probing" / "blimp").mkdir(parents=True)
    (tmp_path / "probing" / "zorro").mkdir()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data/wh_island.jsonl", "".join(json.dumps(pair) + "\n" for pair in pairs))
        archive.writestr("data/.DS_Store", "")
        archive.writestr("__MACOSX/data/._wh_island.jsonl", "")
    (tmp_path / "probing" / "blimp" / "BLiMP.zip").write_bytes(buffer.getvalue())
    (tmp_path / "probing" / "zorro" / "irregular-verb.txt").write_text("bad 0\ngood 0\nbad 1\ngood 1\n")
    (tmp_path / "probing" / "zorro" / "README.md").write_text("read me")
    (tmp_path / "parsing" / "ud_english_ewt").mkdir(parents=True)
    wrong = CAT.replace("a dog", "a big dog")
    for split in ("train", "dev"):
        (tmp_path / "parsing" / "ud_english_ewt" / f"en-ud-{split}.conllu").write_text(
            (CROW + CAT + wrong).replace("s1", f"{split}-1").replace("s2", f"{split}-2")
        )
    return tmp_path


def chosen(pattern: str, archives: Path | None = None) -> list[ProbingSet]:
    return [each for each in archive_sets(archives) if fnmatchcase(each.id, pattern)]


def named(name: str, archives: Path | None = None) -> ProbingSet:
    (definition,) = chosen(name, archives)
    return definition


def labelled(data: ProbingData) -> list[tuple[str, str, str]]:
    """(text, label, group) of each instance of a set of texts."""
    texts = dict(zip(data.passages["passage_id"].to_pylist(), data.passages["text"].to_pylist(), strict=True))
    return [(texts[row["first"][0]], row["label"], row["group"]) for row in data.instances.to_pylist()]


def test_the_archives_decide_which_members_a_family_has(archives: Path) -> None:
    (island,), (verb,) = chosen("blimp-*", archives), chosen("zorro-*", archives)
    assert (island.id, island.type, island.phenomenon) == ("blimp-wh_island", "syntax", "island effects")
    assert (verb.id, verb.type, verb.phenomenon) == ("zorro-irregular-verb", "morphology", "irregular forms")
    assert labelled(read_set(island, archives))[:2] == [
        ("Good 0.", "acceptable", "blimp-wh_island/0000"),
        ("Bad 0.", "unacceptable", "blimp-wh_island/0000"),
    ]
    assert labelled(read_set(verb, archives))[2:] == [
        ("good 1", "acceptable", "zorro-irregular-verb/0001"),
        ("bad 1", "unacceptable", "zorro-irregular-verb/0001"),
    ]


def test_words_of_a_treebank(archives: Path) -> None:
    data = read_set(named("ud-upos", archives), archives)
    assert [note.reason for note in data.notes] == ["2 sentences whose words do not make their text are left out"]
    assert Counter(data.instances["split"].to_pylist()) == {"train": 17, "dev": 17}
    dev = data.instances.to_pylist()[0]
    assert (dev["instance_id"], dev["label"], dev["word"]) == ("ud-upos/dev-1/1", "DET", "the")
    arcs = read_set(named("ud-dep", archives), archives).instances
    assert arcs.num_rows == 34 - 4  # roots have no head
    assert set(map(len, arcs["second"].to_pylist())) == {1} and arcs["word"].null_count == 30


REAL = [path.stem for path in SETS.glob("*.yaml") if path.stem.startswith(("ud-", "ewt-", "gum-"))]


@needs_archives
@pytest.mark.parametrize("name", REAL)
def test_sets_of_the_archives(name: str) -> None:
    definition = named(name)
    data = read_set(definition)
    rows = data.instances.to_pylist()
    assert 500 <= len(rows) <= definition.max_instances
    splits = Counter(row["split"] for row in rows)
    assert splits.keys() == ({"train", "dev", "test"} if name.startswith(("ud-", "ewt-")) else {None})
    if definition.balanced:
        for split in splits:
            counts = Counter(row["label"] for row in rows if row["split"] == split)
            assert len(counts) == 2 and len(set(counts.values())) == 1
    if definition.task == "values":
        assert len({row["value"] for row in rows}) >= 8
    else:
        assert len({row["label"] for row in rows}) >= 2
    assert data.instances.equals(read_set(definition).instances)
