"""Choose the passages of one concept of the shipped corpus."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random
from typing import Any

import numpy as np
from recipes.passages.build import ArchiveSelection
from recipes.passages.documents import Document
from recipes.passages.rewriting.engine import Rewriter
from recipes.passages.selection import Candidate, round_robin
from recipes.passages.weak_labels import Pool
from recipes.passages.yields import Yield
from recipes.real_corpus.credits import attribution, is_free
from recipes.real_corpus.matching import CALIPER, balanced, log_odds, matched
from recipes.real_corpus.rules import Rule
from recipes.real_corpus.windows import windows_around

from poolbench.texts import count_words, words_of
from poolbench_corpora.partition import Split, document_of

RECIPE = "shipped-1"
"""Changes whenever a rule or the selection changes."""
#: Candidates of a class that are looked at for each passage that is asked for.
CANDIDATES = 4
#: Largest share of the passages of a split and class that are of one document.
MAX_SHARE = 0.05


@dataclass
class ShippedSelection(ArchiveSelection):
    """Chooses short passages around markers, and classes that look alike; as many as there are."""

    rule: Rule = field(kw_only=True)

    revision = RECIPE

    @classmethod
    def of(cls, concept: str, rule: Rule, archives: str | None = None, seed: int = 0) -> "ShippedSelection":
        """Return the selection of a concept."""
        tally = Yield(quoting=False)
        return cls(concept, rule.labels, rule.window, seed, count_words, tally, archives, rule=rule)

    def by_domain(self, pool: Pool, split: Split) -> dict[str, Iterator[Candidate]]:
        """Return the candidates of a pool per domain, without documents whose licence is not stated."""
        free = replace(pool, document=lambda document: pool.document(document) and is_free(document, self.archives))
        return super().by_domain(free, split)

    def passages(self, text: str, rng: Random) -> Iterator[str]:
        """Yield passages around what a rewrite changes, or any stretches of the text."""
        if not isinstance(self.labels.rewrite, Rewriter):
            return super().passages(text, rng)
        return windows_around(text, self.window, self.count_tokens, rng, self._place)

    def _place(self, sentence: str) -> float | None:
        """Return where the first change of a rewritten sentence lies, from 0 to 1; None if nothing is rewritten."""
        assert isinstance(self.labels.rewrite, Rewriter)
        if not self.labels.rewrite.markers.search(sentence):
            return None
        rewritten = self.labels.rewrite.sentence(sentence)
        if rewritten is None or rewritten == sentence:
            return None
        old, new = words_of(sentence), words_of(rewritten)
        same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        return same / len(old)

    def candidates(self, document: Document, pool: Pool) -> Iterator[Candidate]:
        """Yield the passages of a document, in the domain that the concept's rule gives it."""
        return super().candidates(replace(document, domain=self.rule.domain(document)), pool)

    def _enough(self, num_candidates: int, number: int, split: Split, name: str) -> None:
        """Take as many as there are."""

    def _choose(self, sides: dict[str, Iterator[Candidate]], number: int, split: Split, name: str) -> list[Candidate]:
        """Return pairs, domains in turn, whose members differ little on average in length, marks and readability."""
        pairs = [*islice(self._spread(round_robin(sides), number), CANDIDATES * number)]
        rows = balanced([one.text for one in pairs], [one.rewritten or "" for one in pairs])
        return [pairs[row] for row in rows[:number]]

    def _classes(self, split: Split, number: int) -> tuple[list[Candidate], list[Candidate]]:
        """Return positives and negatives of equal number that differ little in length, marks and readability."""
        assert self.labels.negatives is not None
        positives, negatives = (
            [*islice(self._spread(round_robin(self.by_domain(pool, split)), number), CANDIDATES * number)]
            for pool in (self.labels.positives, self.labels.negatives)
        )
        pairs = self._alike(positives, negatives, split)
        couples = [*round_robin({domain: iter(pairs[domain]) for domain in sorted(pairs)})]
        rows = balanced([positive.text for positive, _ in couples], [negative.text for _, negative in couples])
        couples = [couples[row] for row in rows[:number]]
        return [positive for positive, _ in couples], [negative for _, negative in couples]

    def _spread(self, candidates: Iterator[Candidate], number: int) -> Iterator[Candidate]:
        """Yield candidates that are not near-duplicates, of each document at most a share of the passages."""
        counts = Counter[str]()
        for candidate in self._accepted(candidates):
            document = document_of(candidate.document.doc_id)
            counts[document] += 1
            if counts[document] <= max(1, MAX_SHARE * number):
                yield candidate

    def _alike(
        self, positives: Sequence[Candidate], negatives: Sequence[Candidate], split: Split
    ) -> dict[str, list[tuple[Candidate, Candidate]]]:
        """Return pairs of a positive and a negative that look alike, by domain where domains are shared."""
        if not positives or not negatives:
            return {}
        scores = log_odds([one.text for one in positives], [one.text for one in negatives])
        caliper = CALIPER * float(np.concatenate(scores).std())
        pairs = {}
        for domain in sorted({self._stratum(one) for one in positives}):
            rows = [
                np.array([i for i, one in enumerate(side) if self._stratum(one) == domain], dtype=int)
                for side in (positives, negatives)
            ]
            indices = matched(scores[0][rows[0]], scores[1][rows[1]], caliper)
            pairs[domain] = [(positives[rows[0][i]], negatives[rows[1][j]]) for i, j in indices]
            Random(f"{RECIPE}:{self.concept}:{split}:{domain}:{self.seed}").shuffle(pairs[domain])
        return pairs

    def _stratum(self, candidate: Candidate) -> str:
        return candidate.document.domain if self.labels.same_domains else ""

    def _row(self, candidate: Candidate, text: str, label: int, split: Split, pair_id: str | None) -> dict[str, Any]:
        row = super()._row(candidate, text, label, split, pair_id)
        return row | {"attribution": attribution(candidate.document, self.archives)}
