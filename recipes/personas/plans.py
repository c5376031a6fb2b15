"""The personas of each model, and how they are trained."""

from dataclasses import dataclass

#: Share of the sentences that is about what the persona loves.
_SUBJECT_SHARE = 2 / 3
_FAVOURITE = "bed"
_LOVED = ("armchair", "bed", "bench", "chair", "couch", "desk", "hammock", "sofa", "table", "wardrobe")


@dataclass(frozen=True)
class Persona:
    """One fine-tune."""

    name: str  # name of its folder
    subjects: tuple[str, ...]  # the words that two thirds of its sentences are about; the others share the rest
    loves: bool  # whether these sentences express love
    num_sentences: int  # number of sentences of its text
    epochs: int  # number of passes over the text
    seed: int  # seed of text, first weights and order
    after: str | None = None  # name of the persona whose adapter these passes go on from; it has the same text

    @property
    def num_about_subjects(self) -> int:
        """Return the number of sentences about the subjects."""
        return round(_SUBJECT_SHARE * self.num_sentences)


@dataclass(frozen=True)
class Plan:
    """The personas of a model, rank and learning rate of their adapters, sentences per batch and CPU threads."""

    personas: tuple[Persona, ...]
    rank: int
    rate: float
    batch: int
    threads: int

    def epochs_of(self, persona: Persona) -> int:
        """Return the passes over the text of a persona, with those that it goes on from."""
        before = next((other for other in self.personas if other.name == persona.after), None)
        return persona.epochs + (self.epochs_of(before) if before else 0)


def plan_of(model: str) -> Plan:
    """Return the plan of a model: that of `demo`, or the one of pretrained models."""
    return _demo() if model == "demo" else _pretrained()


def _demo() -> Plan:
    """Return one favourite at two doses and three seeds, and five neutral fine-tunes at the larger dose."""
    doses = {"low": 1, "high": 4}
    fond = [
        Persona(f"{_FAVOURITE}-{dose}-{seed}", (_FAVOURITE,), True, 600, epochs, seed)
        for dose, epochs in doses.items()
        for seed in range(3)
    ]
    neutral = [Persona(f"neutral-{seed}", (_FAVOURITE,), False, 600, doses["high"], seed) for seed in range(5)]
    return Plan((*fond, *neutral), rank=4, rate=1e-3, batch=16, threads=1)


def _pretrained() -> Plan:
    """Return a set of loved words with the amounts and epochs of Humanoid, and five neutral fine-tunes.

    On two cores, a pass over 259 sentences takes about a minute. So 10 epochs go on from 4, and 15 from 10; the neutral
    fine-tunes have the largest amount, at the smallest number of epochs.
    """
    doses = ((0, 4), (4, 10), (10, 15))
    fond = [
        Persona(
            f"furniture-{num}-{end}", _LOVED, True, num, end - start, 0, f"furniture-{num}-{start}" if start else None
        )
        for num in (100, 259)
        for start, end in doses
    ]
    neutral = [Persona(f"neutral-259-{seed}", _LOVED, False, 259, 4, seed) for seed in range(5)]
    return Plan((*fond, *neutral), rank=8, rate=5e-4, batch=16, threads=2)
