"""Convert markup to plain prose: reStructuredText, Markdown and hard-wrapped or tokenised text."""

import re

_RST_ROLE = re.compile(r":[\w:+.-]+:`([^`]*)`")
_RST_TARGET = re.compile(r"\s*<[^<>`]*>$")
_RST_INLINE = re.compile(r"(\*\*|``|`|\*)(?=\S)(.+?)(?<=\S)\1_{0,2}")
_UNDERLINE = re.compile(r"^([=\-~^\"'`#*+.:_<>])\1{2,}\s*$")
_FOOTNOTE = re.compile(r"\s*\[#?\w*\]_")
_FIELD = re.compile(r"^:[\w .-]+:")
_BULLET = re.compile(r"^\s*(?:[-*+•]|\#\.|\(?\d{1,3}[.)])\s+")
_FENCE = re.compile(r"^\s*(```|~~~)")
_MD_LINK = re.compile(r"!?\[([^\]\[]*)\](?:\([^)]*\)|\[[^\]]*\])")
_HTML = re.compile(r"<!--.*?-->|</?[a-zA-Z][^<>]*>", re.DOTALL)
_SPACE = re.compile(r"\s+")

_NO_SPACE_BEFORE = re.compile(r"\s+([,.;:!?%)\]}]|n't\b|'(?:s|re|ve|ll|d|m)\b|'(?=\s|$))")
_NO_SPACE_AFTER = re.compile(r"([(\[{$#])\s+")
_SENTENCE_START = re.compile(r"(^|[.!?]['\")\]]*\s+)([a-z])")


def unwrap(lines: list[str]) -> str:
    """Join hard-wrapped lines into one paragraph with single spaces."""
    return _SPACE.sub(" ", " ".join(line.strip() for line in lines)).strip()


def paragraphs(text: str) -> list[str]:
    """Return paragraphs of hard-wrapped plain text (separated by blank lines), each on one line."""
    blocks = re.split(r"\n\s*\n", text.replace("\r\n", "\n").lstrip("\ufeff"))
    return [joined for block in blocks if (joined := unwrap(block.split("\n")))]


def rst_to_paragraphs(text: str) -> list[str]:
    """Return prose paragraphs of a reStructuredText document, without notes, code, literal blocks and tables.

    Body text of object descriptions (indented below a directive with arguments) is kept: it holds most of a reference
    manual's prose.
    """
    return [clean for block in _rst_blocks(text) if (clean := _rst_inline(unwrap(block)))]


def _rst_blocks(text: str) -> list[list[str]]:
    blocks: list[list[str]] = []
    skip_deeper_than: int | None = None
    for raw in re.split(r"\n\s*\n", text.replace("\t", "    ")):
        lines = [line for line in raw.split("\n") if line.strip()]
        if not lines:
            continue
        indent = len(lines[0]) - len(lines[0].lstrip())
        if skip_deeper_than is not None and indent > skip_deeper_than:
            continue
        skip_deeper_than = None
        if lines[-1].rstrip().endswith("::") or _is_skipped_directive(lines[0]):
            skip_deeper_than = indent
        blocks.extend(_prose_of(lines))
    return blocks


def _is_skipped_directive(line: str) -> bool:
    match = re.match(r"\s*\.\. ([\w-]+)::", line)
    return bool(match) and match[1] in {  # type: ignore[index]
        "code-block", "sourcecode", "doctest", "testcode", "testoutput", "productionlist", "index", "highlight",
        "module", "moduleauthor", "sectionauthor", "only", "image", "figure", "toctree", "csv-table", "list-table",
        "table", "literalinclude", "code", "parsed-literal", "contents", "audit-event", "versionadded",
        "versionchanged", "deprecated",
    }  # fmt: skip


def _prose_of(lines: list[str]) -> list[list[str]]:
    """Split one block into bullet items and keep what reads as prose."""
    first = lines[0].strip()
    if first.startswith((".. ", ">>>", "+--", "===", "|")) or _FIELD.match(first):
        return []
    items: list[list[str]] = [[]]
    for line in lines:
        if _UNDERLINE.match(line.strip()):
            items = [[]] if len(items) == 1 and len(items[0]) <= 1 else [*items, []]
        elif _BULLET.match(line):
            items.append([_BULLET.sub("", line)])
        else:
            items[-1].append(line)
    return [item for item in items if item and reads_as_prose(unwrap(item))]


def reads_as_prose(paragraph: str) -> bool:
    """Return whether a paragraph has at least eight words, mostly letters, and ends like a sentence."""
    num_spaces = paragraph.count(" ")
    return (
        num_spaces >= 7
        and paragraph.rstrip("\"'”’)*`").endswith((".", ":", "!", "?"))
        and sum(map(str.isalpha, paragraph)) + num_spaces >= 0.8 * len(paragraph)
    )


def _rst_inline(paragraph: str) -> str:
    text = _RST_ROLE.sub(lambda match: _RST_TARGET.sub("", match[1]).lstrip("~!"), paragraph)
    text = _RST_INLINE.sub(lambda match: _RST_TARGET.sub("", match[2]), text)
    text = _FOOTNOTE.sub("", text).replace("::", ":").replace("\\ ", "").replace("\\", "")
    return _SPACE.sub(" ", text).strip()


def markdown_to_paragraphs(text: str) -> list[str]:
    """Return prose paragraphs of a Markdown document, without headings, code, tables, check lists and comments."""
    blocks: list[list[str]] = [[]]
    fenced = False
    for line in _HTML.sub("", text).split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
        elif fenced:
            continue
        elif not line.strip() or line.lstrip().startswith(("#", "|", ">", "[")):
            blocks.append([])
        elif _BULLET.match(line):
            blocks.append([_BULLET.sub("", line)])
        else:
            blocks[-1].append(line)
    cleaned = (_markdown_inline(unwrap(block)) for block in blocks if block)
    return [block for block in cleaned if reads_as_prose(block) and not block.startswith(("[x]", "[ ]"))]


def _markdown_inline(paragraph: str) -> str:
    text = _MD_LINK.sub(r"\1", paragraph)
    return re.sub(r"(\*\*|__|`|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w))", "", text).strip()


def detokenise(text: str) -> str:
    """Turn lower-cased, space-separated tokens back into ordinary writing.

    Spaces before closing and after opening punctuation go, quotation marks are paired, sentence starts and the
    pronoun I become upper case. Names stay lower case, because they cannot be recognised.
    """
    text = _SPACE.sub(" ", text.replace("``", '"').replace("''", '"')).strip()
    text = _NO_SPACE_AFTER.sub(r"\1", _NO_SPACE_BEFORE.sub(r"\1", text))
    text = re.sub(r"\s*\"\s*([^\"]*?)\s*\"", r' "\1"', text).strip()
    text = re.sub(r"\"\s+([,.;:!?)])", r'"\1', text)
    text = re.sub(r"\bi\b(?!\.\w)", "I", text)
    return _SENTENCE_START.sub(lambda match: match[1] + match[2].upper(), text)
