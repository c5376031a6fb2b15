"""The card of the demo language model, written from its metrics."""

from typing import Any

from recipes.passages.documents import SOURCES

CARRIED = "planted on real carriers"

HEAD = """# Demo language model

A decoder in Llama architecture for trying PoolBench without a network or a GPU: {parameters:.1f} M parameters, 6 blocks
of width 256 with 4 heads of size 64, tied embeddings, byte-level BPE of 4,096 tokens that adds `<s>` by itself, up to
1,024 positions. Weights are stored as bfloat16 and load as float32. It writes plausible sentences, knows little, and
must not be used for anything but demonstrations and tests.

## Held-out loss

Nats per token, on text that was not trained on, in chunks of 512 tokens. The n-gram models are interpolated modified
Kneser-Ney, trained on the same text with the same tokenizer and scored on the same tokens.

| text | unigram | bigram | trigram | demo model |
|---|---|---|---|---|
"""

DATA = """
"real" is whole documents of all sources but the novels; "planted" is text of the grammar in `poolbench_corpora.planted`
with the words kept for the language model; "carried" is sentences of held-out real documents with a concept's markers
put in (`recipes/demo_lm/carried.py`).

## Training text

Only documents that the partition gives to the `lm` share (`poolbench_corpora.partition.split_of`); no passage of a
corpus and no text of a scorer comes from them. No share-alike text. Each source was cut at 6 MB, the novels at 20 MB.

| source | bytes | licence | origin |
|---|---|---|---|
"""

MADE = """
{tokens:.1f} M tokens were read in {steps:,} steps{minutes}, in the proportions of `recipes/demo_lm/train.py` (several
passes over the smaller streams). Hidden matrices by Muon, the rest by AdamW; bfloat16 products; on a CPU.

## How it was made

```
python -m recipes.demo_lm.prepare WORK --archives FOLDER      # FOLDER holds passages.tar.xz
python -m recipes.demo_lm.train WORK --minutes 60 --threads 1
python -m recipes.demo_lm.evaluate WORK assets/demo_lm
```

The learning rate follows the time budget, so a run on another machine gives another model of about this quality. The
mix was changed during the run that made this model: for its first 11.3 M tokens it read real text (two thirds) and
planted text alone, then real, planted and carried text, of which the carried part was rewritten three times.

## Licence

Weights and tokenizer: Apache-2.0, as the project. The training text keeps the licences above; attribution is due to the
authors of the biomedical articles (CC BY), Kubernetes (Apache-2.0), the Python (PSF-2.0) and Django (BSD-3-Clause)
documentation.
"""


def card_text(metrics: dict[str, Any]) -> str:
    """Return the card as Markdown; `metrics` is the `metrics.json` of `evaluate.py`."""
    losses = metrics["held_out_nats_per_token"]
    text = HEAD.format(parameters=metrics["num_parameters"] / 1e6)
    for kind, row in losses.items():
        values = " | ".join(f"{row[name]:.3f}" for name in ("unigram", "bigram", "trigram", "demo_lm"))
        text += f"| {kind} | {values} |\n"
    text += DATA
    for kind in losses:
        for name, num_bytes in metrics["texts"][kind]["source_bytes"].items():
            text += f"| {_source_row(name, num_bytes)} |\n"
    run = metrics["run"]
    minutes = f" and {run['wall_s'] / 60:.0f} minutes" if run else ""
    return text + MADE.format(tokens=run.get("num_tokens", 0) / 1e6, steps=run.get("num_steps", 0), minutes=minutes)


def _source_row(name: str, num_bytes: int) -> str:
    source = SOURCES.get(name)
    if name == CARRIED:
        return f"{name} | {num_bytes:,} | as its sentences, which come from the sources above | this project"
    if source is None:
        return f"{name} | {num_bytes:,} | Apache-2.0 | this project"
    return f"{name} | {num_bytes:,} | {source.licence} | {source.origin}"
