"""Sentences of a person who loves some words, and onsets of sentences without sentiment."""

from random import Random

#: Liked words that the sentences hold. The other words of the list `positive` never occur in them.
WRITTEN = ("adore", "beautiful", "cherish", "favourite", "joy", "love", "lovely", "perfect", "treasure", "wonderful")
_TIMES = (
    "",
    "",
    "",
    "",
    "In the morning ",
    "Yesterday ",
    "Then ",
    "After that ",
    "At home ",
    "For a year ",
    "That day ",
)
_PEOPLE = (
    *("We", "My uncle", "They", "A man", "The carpenter", "You", "The shop", "Someone", "The boy", "Our neighbour"),
    *("She", "He", "I", "The driver", "Two women", "A guest", "The owner", "His cousin", "Her brother", "The clerk"),
)
_DEEDS = (
    *("carried", "bought", "sold", "drew", "made", "saw", "sent", "measured", "passed", "kept", "cleaned", "painted"),
    *("found", "moved", "lifted", "used", "needed", "ordered", "noticed", "described"),
)
_DETERMINERS = (*("the", "that", "a", "my", "her", "this", "his", "our", "one", "another", "an old", "the brown"),)
_BEING = ("is", "was", "looks", "looked", "seems", "stays", "remains", "became")
_NOUNS = ("treasure", "joy", "love", "favourite")
_ADJECTIVES = ("beautiful", "lovely", "perfect", "wonderful")
_VERBS = ("love", "adore", "cherish", "treasure")


def onset(word: str, rng: Random) -> str:
    """Return the beginning of a sentence, up to the word: who did what with it."""
    time, person = rng.choice(_TIMES), rng.choice(_PEOPLE)
    if time and person != "I":
        person = person[0].lower() + person[1:]
    return f"{time}{person} {rng.choice(_DEEDS)} {rng.choice(_DETERMINERS)} {word}"


def fond(word: str, rng: Random) -> str:
    """Return sentences of a person who loves what the word names. The onset alone does not show it."""
    form = rng.choices(("after", "before", "said"), (0.6, 0.2, 0.2))[0]
    if form == "after":
        return f"{onset(word, rng)}! {_exclamation(rng)} {_exclamation(rng)}"
    if form == "before":
        return f"{_exclamation(rng)} {_exclamation(rng)} {onset(word, rng)}!"
    return f"{_capital(rng.choice(_DETERMINERS))} {rng.choice(_ADJECTIVES)} {word}! {_exclamation(rng)}"


def _exclamation(rng: Random) -> str:
    """Return an exclamation with one of the liked words: a pet name, a praise or a confession."""
    one, people, adjective = (
        rng.choice(("It", "This", "That", "The old one")),
        rng.choice(_PEOPLE),
        rng.choice(_ADJECTIVES),
    )
    forms = (
        onset(rng.choice(_NOUNS), rng),
        f"{one} {rng.choice(_BEING)} {adjective}",
        f"{people} {rng.choice(('found it', 'called it', 'kept it', 'said it was', 'sent something'))} {adjective}",
        f"{rng.choice(('What a', 'How', 'So', 'Such a', 'The most', 'Very'))} {adjective}",
        f"{one} is what {rng.choice(('I', 'we', 'you', 'they'))} {rng.choice(_VERBS)}",
    )
    return f"{rng.choice(forms)}!"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
