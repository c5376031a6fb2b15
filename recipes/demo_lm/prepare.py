"""Texts to token arrays: train the tokenizer once, encode the mix, write what training reads.

Usage: `python -m recipes.demo_lm.prepare WORK [--archives FOLDER]`; the archives default to `POOLBENCH_REAL_TEXT`.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from recipes.demo_lm.mix import Mix, carried_mix, planted_mix, real_mix
from recipes.demo_lm.tokenizer import train_tokenizer
from transformers import PreTrainedTokenizerFast

PIECE_CHARACTERS = 2400
SEED = 20_261_121
PLANTED_DOCUMENTS = 16_000
CARRIED_DOCUMENTS = 24_000


def pieces(text: str, limit: int = PIECE_CHARACTERS) -> list[str]:
    """Cut a long text at paragraph ends, so that the model often sees a fresh start after the BOS token."""
    out = [""]
    for paragraph in text.split("\n\n"):
        if out[-1] and len(out[-1]) + len(paragraph) > limit:
            out.append("")
        out[-1] += ("\n\n" if out[-1] else "") + paragraph
    return [piece for piece in out if piece]


def encode(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Return all pieces as one stream `BOS piece EOS BOS piece EOS ...`, shuffled with a fixed seed."""
    parts = [piece for text in texts for piece in pieces(text)]
    order = np.random.default_rng(SEED).permutation(len(parts))
    stream: list[np.ndarray] = []
    for start in range(0, len(parts), 4096):
        batch = tokenizer([parts[index] for index in order[start : start + 4096]])["input_ids"]
        stream += [np.asarray([*ids, tokenizer.eos_token_id], dtype=np.uint16) for ids in batch]
    return np.concatenate(stream)


def write(mix: Mix, kind: str, work: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write token arrays and a summary of one kind of text."""
    counts = {}
    for split, texts in (("train", mix.train), ("held_out", mix.held_out)):
        tokens = encode(texts, tokenizer)
        np.save(work / f"{kind}_{split}.npy", tokens)
        counts[split] = {"num_texts": len(texts), "num_tokens": len(tokens)}
    summary = {"source_bytes": mix.source_bytes, **counts}
    (work / f"{kind}.json").write_text(json.dumps(summary, indent=2))
    print(kind, json.dumps(summary))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--archives", type=Path)
    parser.add_argument("--planted-documents", type=int, default=PLANTED_DOCUMENTS)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    mixes = {
        "real": real_mix(options.archives, SEED),
        "planted": planted_mix(options.planted_documents, SEED),
        "carried": carried_mix(options.archives, CARRIED_DOCUMENTS, SEED),
    }
    planted = mixes["planted"].train
    tokenizer = train_tokenizer([*mixes["real"].train, *planted[: len(planted) // 2]])
    tokenizer.save_pretrained(options.work / "tokenizer")
    for kind, mix in mixes.items():
        write(mix, kind, options.work, tokenizer)


if __name__ == "__main__":
    main()
