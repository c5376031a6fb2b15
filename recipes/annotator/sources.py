"""The texts that train and test the pipeline.

Training takes documents of the partition's `annotator` share only. Tests use the official test parts of
EWT and GUM, UNER's test, and the last blocks of wikigold; none of them is trained on. Steps are chosen on the
official dev parts of EWT and GUM (trees) and on dev of GUM and WNUT17 (entities): UNER has no training part,
so its dev part trains the recogniser.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from recipes.annotator import entities
from recipes.annotator.conllu import Sentence, read_conllu

from poolbench_corpora.partition import split_of

EWT = "ud_english_ewt/en_ewt-ud-{part}.conllu"
UNER = "uner_english_ewt/en_ewt-ud-{part}.iob2"
WIKIGOLD = "ner/wikigold/CONLL-format/data/wikigold.conll.txt"
WNUT = "ner/WNUT17/CONLL-format/data/train/wnut17train.conll"
SEC = "ner/SEC-filings/CONLL-format/data/train/FIN5.txt"
BROAD_TWITTER = "ner/BTC/CONLL-format/data/{section}.conll"
WNUT_DEV = "ner/WNUT17/CONLL-format/data/dev/emerging.dev.conll"
WIKIGOLD_TEST_SHARE = 0.15
UNER_REPEATS = 3
"""The only general web text among the sets is small; it counts more often."""

BLOCK = entities.SENTENCES_PER_BLOCK

Members = Mapping[str, str]


@dataclass(frozen=True)
class Parts:
    """Training, development and test sentences of one task."""

    train: list[Sentence]
    dev: list[Sentence]
    test: dict[str, list[Sentence]]


def ours(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Return the sentences whose document belongs to the annotator."""
    return [sentence for sentence in sentences if split_of(sentence.doc_id) == "annotator"]


def treebanks(members: Members) -> Parts:
    """Return sentences with UPOS, lemmas and dependencies."""
    gum = gum_parts(members)
    ewt = {part: list(ewt_sentences(members, part)) for part in ("train", "dev", "test")}
    return Parts(
        train=ours([*ewt["train"], *gum["train"]]),
        dev=ewt["dev"] + gum["dev"],
        test={"UD English EWT": ewt["test"], "GUM": gum["test"]},
    )


def ewt_sentences(members: Members, part: str) -> Iterable[Sentence]:
    """Return the sentences of one official part of EWT."""
    return read_conllu(members[EWT.format(part=part)], source="ud_english_ewt")


def gum_parts(members: Members) -> dict[str, list[Sentence]]:
    """Return GUM's sentences by the official part of their document."""
    part_of = _gum_split(members["gum/splits.md"])
    parts: dict[str, list[Sentence]] = {"train": [], "dev": [], "test": []}
    for path in sorted(members):
        if path.startswith("gum/conllu/"):
            name = path.removeprefix("gum/conllu/").removesuffix(".conllu")
            parts[part_of.get(name, "train")] += read_conllu(members[path], source="gum")
    return parts


def _gum_split(text: str) -> dict[str, str]:
    """Map documents to `dev` or `test` as listed in GUM's `splits.md`; all others are for training."""
    part, split = "train", {}
    for line in text.splitlines():
        if line.startswith("## "):
            part = line.removeprefix("## ").strip()
        elif line.strip().startswith("* ") and part in ("dev", "test"):
            split[line.strip().removeprefix("* ")] = part
    return split


def entity_sets(members: Members) -> Parts:
    """Return sentences with entity spans."""
    gum = gum_parts(members)
    wikigold = list(entities.read_conll(members[WIKIGOLD], source="wikigold"))
    cut = round(len(wikigold) * (1 - WIKIGOLD_TEST_SHARE) / BLOCK) * BLOCK
    twitter = [
        sentence
        for section in "abefgh"
        for sentence in entities.read_conll(
            members[BROAD_TWITTER.format(section=section)], source=f"broad_twitter/{section}"
        )
    ]
    train = [
        *uner(members, "dev") * UNER_REPEATS,
        *map(entities.gum_entities, gum["train"]),
        *wikigold[:cut],
        *map(entities.drop_roles, entities.read_conll(members[SEC], source="sec_filings")),
        *map(entities.drop_user_names, entities.read_conll(members[WNUT], source="wnut17")),
        *map(entities.drop_user_names, twitter),
    ]
    wnut_dev = entities.read_conll(members[WNUT_DEV], source="wnut17/dev")
    dev = [*map(entities.gum_entities, gum["dev"]), *map(entities.drop_user_names, wnut_dev)]
    return Parts(
        train=ours(train),
        dev=dev,
        test={"UNER English EWT": uner(members, "test"), "wikigold (last 15 %)": wikigold[cut:]},
    )


def uner(members: Members, part: str) -> list[Sentence]:
    """Return UNER's entities on the words of EWT."""
    documents: dict[str, list[Sentence]] = defaultdict(list)
    for sentence in ewt_sentences(members, part):
        documents[sentence.doc_id.partition("/")[2]].append(sentence)
    return list(entities.read_iob2(members[UNER.format(part=part)], documents))
