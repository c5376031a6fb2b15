"""One small reader per layout of the archives: from files to entries."""

import io
import json
import re
import zipfile
from collections.abc import Iterator

from recipes.passages.documents import Entry, Files
from recipes.passages.markup import detokenise, markdown_to_paragraphs, paragraphs, rst_to_paragraphs

from poolbench.errors import CorpusError

GOEMOTIONS_HOSTILE = frozenset({"anger", "annoyance", "disgust"})


def read_records(content: bytes, name: str) -> Iterator[dict[str, str]]:
    """Yield the records of a JSONL file. Raise CorpusError with file and line if one is not an object with a text."""
    for number, line in enumerate(content.decode("utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise CorpusError(f"{name}, line {number}: not JSON ({error.msg}); correct or remove the line") from error
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise CorpusError(f"{name}, line {number}: no text field; every record needs a string called 'text'")
        yield record


def _all_records(files: Files) -> Iterator[dict[str, str]]:
    for name in sorted(files):
        if name.endswith(".jsonl"):
            yield from read_records(files[name], name)


def _lines(text: str) -> str:
    """Turn one paragraph per line into one paragraph per block."""
    return "\n\n".join(line.strip() for line in text.split("\n") if line.strip())


def read_novels(files: Files) -> Iterator[Entry]:
    """Read `Author_Title_Year.txt`; the document is the author, so that no author is in two splits."""
    for name in sorted(files):
        if name.endswith(".txt"):
            author, title, _ = name.removesuffix(".txt").split("_")
            text = "\n\n".join(paragraphs(_dialogue_dashes(files[name].decode("utf-8"))))
            yield Entry(f"{author.lower()}/{title.lower()}", text)


def _dialogue_dashes(text: str) -> str:
    """Add blank lines to novels that indent paragraphs instead of separating them."""
    if text.count("\n\n") * 200 > text.count("\n"):
        return text
    return re.sub(r"\n(?=\s{2,}\S|[\"“])", "\n\n", text)


def read_articles(files: Files) -> Iterator[Entry]:
    """Read `<PubMed id>.txt`; front matter and reference lists fail the prose test."""
    for name in sorted(files):
        if name.endswith(".txt"):
            blocks = paragraphs(files[name].decode("utf-8"))
            yield Entry(name.removesuffix(".txt"), "\n\n".join(block for block in blocks if block.count(" ") >= 7))


def read_rst(files: Files) -> Iterator[Entry]:
    """Read reStructuredText files, one document each."""
    for name in sorted(files):
        if name.endswith(".rst"):
            yield Entry(name.removesuffix(".rst"), "\n\n".join(rst_to_paragraphs(files[name].decode("utf-8"))))


def read_proposals(files: Files) -> Iterator[Entry]:
    """Read Markdown proposals named `<group>__<number>-<title>__README.md`; templates are skipped."""
    for name in sorted(files):
        if name.endswith(".md") and "NNNN" not in name:
            text = "\n\n".join(markdown_to_paragraphs(files[name].decode("utf-8")))
            yield Entry(name.removesuffix(".md").removesuffix("__README"), text)


def read_pages(files: Files) -> Iterator[Entry]:
    """Read manual pages from records, without navigation lines."""
    for record in _all_records(files):
        lines = [line for line in record["text"].split("\n") if line.count(" ") >= 7 and " | " not in line]
        yield Entry(record["id"].replace("/", "__"), "\n\n".join(lines))


def read_statutes(files: Files) -> Iterator[Entry]:
    """Read sections; the document is the chapter (`16-831.02` belongs to `16-831`)."""
    for record in _all_records(files):
        yield Entry(f"{record['id'].partition('.')[0]}/{record['id']}", _lines(record["text"]))


def read_regulations(files: Files) -> Iterator[Entry]:
    """Read regulations and official interpretations by part, and the published analysis of rules by rule."""
    for record in read_records(files["regulations.jsonl"], "regulations.jsonl"):
        document = f"part-{record['part']}/{record['kind']}-{record['id']}"
        yield Entry(document, _lines(record["text"]), (("kind", record["kind"]),))
    for record in read_records(files["analysis.jsonl"], "analysis.jsonl"):
        rule = record["doc"].removesuffix(".xml").split("/", 1)[1].replace("/", "-")
        yield Entry(f"analysis-{rule}/{record['id']}", _lines(record["text"]), (("kind", "analysis"),))


def read_complaints(files: Files) -> Iterator[Entry]:
    """Read consumer complaints, one document each."""
    for record in _all_records(files):
        yield Entry(record["id"], _lines(record["text"]), (("product", record["product"]),))


def read_factbook(files: Files) -> Iterator[Entry]:
    """Read sections of country profiles; the document is the country."""
    for record in _all_records(files):
        country = record["country"].replace("/", "-")
        yield Entry(f"{country}/{record['section'].replace(' ', '-')}", _lines(record["text"]))


def read_requests(files: Files) -> Iterator[Entry]:
    """Read requests of two communities with a mean politeness rating (in standard deviations)."""
    for name, domain in (("stack-exchange.jsonl", "technical forums"), ("wikipedia.jsonl", "encyclopaedia talk")):
        for record in read_records(files[name], name):
            yield Entry(record["id"], record["text"].strip(), (("politeness", str(record["score"])),), domain)


def read_comments(files: Files) -> Iterator[Entry]:
    """Read Reddit comments (tab-separated text, label numbers, id), labelled hostile, neutral or neither."""
    names = files["labels.txt"].decode("utf-8").split()
    for part in ("train.tsv", "dev.tsv"):
        for line in files[part].decode("utf-8").splitlines():
            text, numbers, comment = line.split("\t")
            emotions = {names[int(number)] for number in numbers.split(",")}
            kind = "hostile" if emotions & GOEMOTIONS_HOSTILE else "neutral" if emotions == {"neutral"} else ""
            yield Entry(comment, text, (("emotion", kind),))


def zipped(files: Files, name: str) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of the text members of a zip file inside the archive."""
    with zipfile.ZipFile(io.BytesIO(files[f"{name}.zip"])) as archive:
        for member in sorted(archive.namelist()):
            if member.endswith(".txt"):
                yield member.partition("/")[2].removesuffix(".txt"), archive.read(member).decode("utf-8", "replace")


def read_inaugural(files: Files) -> Iterator[Entry]:
    """Read inaugural addresses by president."""
    for name, text in zipped(files, "inaugural"):
        yield Entry(f"{name.split('-')[1].lower()}/{name}", "\n\n".join(paragraphs(text)))


def read_state_union(files: Files) -> Iterator[Entry]:
    """Read State of the Union addresses by president; lines are paragraphs."""
    for name, text in zipped(files, "state_union"):
        lines = [line for line in _lines(text).split("\n\n") if line.count(" ") >= 4]
        yield Entry(f"{name.split('-')[1].lower()}/{name}", "\n\n".join(lines))


def read_movie_reviews(files: Files) -> Iterator[Entry]:
    """Read film reviews with the sentiment of their folder, detokenised."""
    for name, text in zipped(files, "movie_reviews"):
        sentiment, _, review = name.partition("/")
        yield Entry(review, detokenise(text), (("sentiment", sentiment),))


def read_masc(files: Files) -> Iterator[Entry]:
    """Read `word_TAG` text of the Manually Annotated Sub-Corpus, written texts only, detokenised."""
    for name, text in zipped(files, "masc_tagged"):
        if name.startswith("written/"):
            words = [token.rpartition("_")[0] for token in text.split()]
            yield Entry(name.partition("/")[2], detokenise(" ".join(words)))


def read_wikitext(files: Files) -> Iterator[Entry]:
    """Read WikiText pages (` = Title = ` starts one), detokenised."""
    text = "\n" + files["wiki.test.raw"].decode("utf-8").replace("\r\n", "\n")
    pages = re.split(r"\n = ([^=\n]+) = \n", text)
    for number, (title, body) in enumerate(zip(pages[1::2], pages[2::2], strict=True)):
        blocks = [line for line in body.split("\n") if line.strip() and not line.startswith(" = ")]
        text = "\n\n".join(detokenise(re.sub(r" @(.)@ ", r"\1", block)) for block in blocks)
        yield Entry(f"{number:02d}-{title.strip().replace(' ', '-').replace('/', '-')}", text)
