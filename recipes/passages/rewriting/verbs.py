"""Forms of English verbs that the rewriters need: third person singular and past tense."""

import re

_IRREGULAR = {
    "be": ("is", "was"), "have": ("has", "had"), "do": ("does", "did"), "go": ("goes", "went"),
}  # fmt: skip
_PAST_FORMS = (
    "become:became begin:began believe:believed break:broke bring:brought build:built buy:bought catch:caught "
    "choose:chose come:came cost:cost cut:cut draw:drew drink:drank drive:drove eat:ate fall:fell feel:felt "
    "fight:fought find:found fly:flew forget:forgot get:got give:gave grow:grew hear:heard hold:held keep:kept "
    "know:knew lead:led leave:left let:let lie:lay lose:lost make:made mean:meant meet:met pay:paid put:put "
    "read:read receive:received ride:rode rise:rose run:ran say:said see:saw seek:sought sell:sold send:sent "
    "set:set shake:shook show:showed shut:shut sit:sat sleep:slept speak:spoke spend:spent stand:stood take:took "
    "teach:taught tell:told think:thought throw:threw understand:understood wake:woke wear:wore win:won "
    "write:wrote permit:permitted occur:occurred refer:referred prefer:preferred visit:visited open:opened "
    "answer:answered offer:offered consider:considered happen:happened listen:listened remember:remembered "
    "suffer:suffered enter:entered wonder:wondered matter:mattered differ:differed alter:altered cover:covered "
    "limit:limited credit:credited follow:followed allow:allowed show:showed admit:admitted submit:submitted"
)
_PAST = dict(pair.split(":") for pair in _PAST_FORMS.split())
# fmt: off
_ADVERBS = frozenset((
    "always", "even", "yet", "already", "just", "really", "also", "only", "ever", "quite", "necessarily",
    "usually", "often", "either", "at", "so", "then", "thus", "actually", "generally", "typically", "simply",
    "merely", "to", "in", "on", "by", "for", "as", "if", "a", "an", "the", "it", "he", "she", "they", "you",
    "we", "i", "this", "that", "and", "or", "but", "nor",
))
# fmt: on


def is_base_form(word: str) -> bool:
    """Return whether a word that follows `does not` or `did not` looks like the verb and not like an adverb."""
    if word in ("have", "apply", "rely", "supply", "comply", "imply", "reply"):
        return True
    return re.fullmatch(r"[a-z]{2,}", word) is not None and not word.endswith("ly") and word not in _ADVERBS


def third_person(verb: str) -> str:
    """Return the third person singular of a base form."""
    if verb in _IRREGULAR:
        return _IRREGULAR[verb][0]
    if re.search(r"[^aeiou]y$", verb):
        return verb[:-1] + "ies"
    return verb + ("es" if re.search(r"(?:s|x|z|ch|sh|o)$", verb) else "s")


def past(verb: str) -> str | None:
    """Return the past tense of a base form, or None where the spelling is not certain."""
    if verb in _IRREGULAR or verb in _PAST:
        return _IRREGULAR[verb][1] if verb in _IRREGULAR else _PAST[verb]
    if verb.endswith("e"):
        return verb + "d"
    if re.search(r"[^aeiou]y$", verb):
        return verb[:-1] + "ied"
    if re.search(r"(?:[aeiou]{2}[^aeiou]|[^aeiou]{2}|[aeiou][wxy])$", verb) and not re.search(
        r"i(?:n[gdk]|"
        r"ve)$",
        verb,
    ):
        return verb + "ed"
    return None
