"""Find the clauses that a connective joins, by rules, and join them by `and` instead."""

import re

from recipes.passages.rewriting.engine import GAP, DeclinedError, Step

PRONOUN = r"(?:I|we|you|he|she|it|they|there|nobody|everybody|everyone|someone|one)"
DETERMINER = (
    r"(?:the|an?|this|that|these|those|my|your|his|her|its|our|their|no|some|all|each|every|such|any|both|most|many|"
    r"several|other|another|neither|only)"
)
SUBJECT = rf"(?:{PRONOUN}|{DETERMINER})"
_FINITE_VERBS = (
    r"is|are|was|were|am|be|been|has|have|had|do|does|did|will|would|can|could|may|might|must|shall|should|cannot|"
    r"seems?|says?|said|went|came|knew|saw|took|made|got|felt|left|found|gave|thought|kept|became|began|held|"
    r"makes?|takes?|gives?|goes|uses?|needs?|wants?|requires?|allows?|contains?|means?|provides?|exists?|depends?|"
    r"know|think|see|like|love|hate|want|need|believes?|returns?|supports?|works?|runs?|occurs?|comes?|gets?|offers?|"
    r"involves?|appears?|reports?|performs?|demonstrates?|vary|may|handles?|holds?|refers?|implies|treats?|"
    r"remains?|becomes?|sends?|shows?|tends?|argues?|notes?|finds?|feels?|stood|told|ran|met|set|sat|"
    r"put|wrote|spoke|fell|lay|rose|heard|meant|paid|sent|lost|led|brought|bought|sought|caught|grew|drew|"
    r"knows|thinks"
)
FINITE = re.compile(rf"(?i)\b(?:{_FINITE_VERBS})\b|n['’]t\b|['’](?:s|re|ve|m|ll|d)\b|\b\w{{2,}}ed\b")
SUBORDINATE = re.compile(
    r"(?i)^[\W_]*(?:if|when|while|although|though|because|since|as|unless|where|after|before|until|once|whenever|"
    r"wherever|even|given|provided|whether)\b"
)
_PREPOSITION = re.compile(
    r"(?i)^[\W_]*(?:in|at|on|to|for|by|with|under|from|during|unlike|like|contrary|according|among|between|instead|"
    r"within|without|over|through|of|despite|as)\b"
)
_WITH_SUBJECT = re.compile(rf"(?i), .*|\b{PRONOUN}\b|\b(?:is|was|are|were|has|had|will|would|did|does)\b")
_INTERRUPTION = re.compile(
    r"(?i)(?:please|which|who|whom|whose|where|when|if|as|while|unless|although|though|because|since|however|after|before)\b"
)
_LIST = re.compile(r"(?i)(?:and|or|but|nor|including|such as|e\.g\.|i\.e\.|for example|not)\b")


def clause_end(rest: str) -> int | None:
    """Return the place of the comma between a fronted clause and its main clause, or None if it is not certain."""
    stop = re.search(r"[;:?!]|\.\s", rest)
    scope = rest[: stop.start()] if stop else rest
    commas = [match.start() for match in re.finditer(r",(?=\s)", scope) if _outside_brackets(scope[: match.start()])]
    for comma in commas:
        following = scope[comma + 1 :].lstrip()
        if _INTERRUPTION.match(following):
            return None
        if _LIST.match(following):
            continue
        single = len(commas) == 1 or re.match(rf"(?:{PRONOUN})\b", following)
        clause = re.match(rf"{PRONOUN}\b(?: \S+){{2}}", scope[:comma]) or FINITE.search(scope[:comma])
        if clause and (single or re.match(rf"{SUBJECT}\b", following, re.I)):
            return comma if FINITE.search(following) else None
        return None
    return None


def _outside_brackets(text: str) -> bool:
    return all(text.count(left) == text.count(right) for left, right in ("()", "[]", "“”")) and text.count('"') % 2 == 0


def finite_before(text: str) -> bool:
    """Return whether the clause that ends a text has a verb of its own, so that another clause may follow."""
    clause = re.split(r"[;:(]|--|\s[-–—]\s", re.sub(r"\([^()]*\)", "", text))[-1]
    return FINITE.search(clause) is not None


def coordinated(connective: str) -> Step:
    """Return a step that replaces a subordinating connective by `and`, or deletes it where no clause precedes."""
    pattern = re.compile(rf"(,?\s*)\b({connective})\b(?!,)\s+", re.IGNORECASE)

    def step(sentence: str) -> str:
        while match := pattern.search(sentence):
            sentence = _join(
                sentence[: match.start()], sentence[match.end() :], match[1], fragment=match[2].lower() != "since"
            )
        return sentence

    return step


_NO_CLAUSE = re.compile(
    r"(?i)\b(?:that|which|who|is|was|are|were|be|what|why|how|as|not|than|of|to|with|just|only|simply|"
    r"merely|precisely|exactly|however|so|even|if|when|whether|part|rather)$"
)
_ADVERB = re.compile(
    r"(?i),? (?:mainly|mostly|largely|partly|primarily|partially|presumably|probably|chiefly|especially|"
    r"particularly|in part)$"
)
_LINKED = re.compile(r"(?i)(?:^|[,;]\s*|\s)(?:and|but|or|that)$")
_NO_SUBJECT = re.compile(
    r"(?i)(?:having|being)\b|(?:\w+ed|\w{2,}(?:able|ful|ous|ing|ly))(?:,| (?:and|by|in|to|for|with|at|on)\b|"
    r"$)|quite |(?!(?:this|that|it)\b)\w+ (?:of|that|to|in|for|with)\b"
)
_CONTINUED = re.compile(r"(?i), (?:to|that|by|could|is|was|are|were|has|have|had|will|would|can|did|does)\b")
_LEADING = re.compile(
    r"(?i)^\W*(?:thus|therefore|moreover|furthermore|finally|however|also|indeed|further|in addition|for example|"
    r"then|now|similarly|additionally|second|third|first|in this case|in contrast|nevertheless|but|and)$"
)
_NAMED = re.compile(r"(?i)\b(?:who|whose|which|those|anyone|everyone|people|that)(?: [^\s,;.]+){1,7}$")


def _join(before: str, rest: str, gap: str, *, fragment: bool) -> str:
    """Join the text before a subordinate clause and the text from it on."""
    before = _ADVERB.sub("", before)
    if not re.search(r"\w", before) or re.search(
        r"[;:(—–]\s*$|--\s*$|\s-\s*$|[.!?:;]\s*[\"“'‘]$|[,]\s*[\"“‘]$", before
    ):
        space = " " if gap.endswith(" ") and re.search(r"[^\s(\"“‘']$", before) else ""
        return _fronted(before + space, rest, fragment=fragment)
    if _LEADING.match(before):
        return _fronted(before + gap, rest, fragment=False)
    if _LINKED.search(before):
        return _fronted(before + " ", rest, fragment=False)
    name_match = not gap.startswith(",") and _NAMED.search(before)
    if _NO_CLAUSE.search(before) or not finite_before(before) or name_match:
        raise DeclinedError
    end = re.search(r"[;:.?!,]", rest)
    segment = rest[: end.start()] if end else rest
    if gap.startswith(",") and _CONTINUED.match(rest[len(segment) :]):
        raise DeclinedError  # the clause stands between a verb and what belongs to it
    if SUBORDINATE.match(before) and "," not in before:
        raise DeclinedError  # the clause belongs to a fronted one, whose end is not certain
    clause = re.match(rf"{SUBJECT}\b(?: \S+){{2}}", segment, re.I) or FINITE.search(segment)
    if not clause or _NO_SUBJECT.match(segment) or re.search(r"\?\W*$", rest):
        raise DeclinedError
    return f"{before}, and {rest}" if gap.startswith(",") or len(before.split()) > 3 else f"{before} and {rest}"


def _fronted(before: str, rest: str, *, fragment: bool) -> str:
    """Return a fronted clause and its main clause as two, or the clause alone where it is the whole sentence."""
    if re.search(r"\?\W*$", rest) or _NO_SUBJECT.match(rest):
        raise DeclinedError
    comma = clause_end(rest)
    if comma is not None:
        main = re.sub(r"^(\s*)then\s+", r"\1", rest[comma + 1 :])
        main = re.sub(r"^(\s+)(The|This|These|It|We|They|There|In|An?) ", lambda m: m[0].lower(), main)
        opened = before + (GAP if before.strip() else "")
        return f"{opened}{rest[:comma]}, and{main}"
    if fragment and not re.search(r",", rest) and FINITE.search(rest):
        return before + rest
    raise DeclinedError


def dropped_adverb(adverb: str) -> Step:
    """Return a step that deletes a connecting adverb with its commas, and keeps two clauses apart by `and`."""
    pattern = re.compile(rf"(,?)(\s*)\b(?:{adverb})\b(,?)(\s*)", re.IGNORECASE)

    def step(sentence: str) -> str:
        position = 0
        while match := pattern.search(sentence, position):
            before, rest = sentence[: match.start()], sentence[match.end() :]
            middle = _between(before, rest, match[1], match[3])
            sentence = f"{before}{middle}{rest}"
            position = len(before)
        return sentence

    return step


def _between(before: str, rest: str, left: str, right: str) -> str:
    """Return what replaces an adverb and the commas to its left and right."""
    if not re.search(r"\w", before) or re.search(r"[;:(\"“‘—–\n]\s*$|--\s*$", before):
        opener = before.rstrip()[-1:]
        return " " + GAP if opener and opener not in '("“‘' else GAP
    if re.match(r"[.;:!?)”]|\"(?:\s|$)|$", rest):
        return ""
    phrase = _PREPOSITION.match(before) and not _WITH_SUBJECT.search(before) and not FINITE.match(rest)
    if left and right and (SUBORDINATE.match(before) or phrase):
        return ", "
    subject = re.match(rf"{SUBJECT}\b(?! of)", rest, re.I) and not re.match(r"that\b", rest, re.I)
    if not subject or not left:
        if left and right:
            return " "
        return ", " if left or (right and not re.search(r"(?i)\b(?:and|but|or|that)$", before)) else " "
    if SUBORDINATE.match(before) or not finite_before(before):
        return ", "
    return ", and "
