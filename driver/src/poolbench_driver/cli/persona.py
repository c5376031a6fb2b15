"""persona train: a LoRA adapter from a list of sentences."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.config import ModelRef, resolve_model
from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError, InputError

if TYPE_CHECKING:
    from poolbench_driver.models.training import Training

app = typer.Typer(help="Fine-tunes of a model on sentences.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Keep `train` a command of its own name."""


@app.command()
def train(
    sentences: Annotated[
        Path, typer.Argument(help="Sentences: plain text, one per line, or a table with a column 'text'.")
    ],
    output: Annotated[Path, typer.Option(help="Folder of the adapter; its name is that of the fine-tune.")],
    model: Annotated[str, typer.Option(help="Preset, folder or Hugging Face id of the model before.")] = "demo",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the sentences.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first weights and of the order.")] = 0,
    save_epochs: Annotated[
        str | None,
        typer.Option(metavar="<int,...>", help="Also keep the adapter after these epochs, as <output>-epoch-<number>."),
    ] = None,
    rank: Annotated[int, typer.Option(min=1, help="Rank of the adapter.")] = 8,
    rate: Annotated[float, typer.Option(min=0, help="Learning rate.")] = 5e-4,
    batch: Annotated[int, typer.Option(min=1, help="Sentences of a step.")] = 16,
) -> int:
    """Train a LoRA adapter on sentences, for `run --suite humanoid --after FOLDER`."""
    from poolbench_driver.models import obtain
    from poolbench_driver.models.training import Training
    from poolbench_driver.queries.texts import read_texts

    earlier = _earlier_epochs(save_epochs, epochs)
    lines = read_texts(sentences)
    for line in lines:
        if line.invalid:
            raise InputError(f"{line.where}: {line.invalid}; remove it")
    texts = [" ".join(line.text.split()) for line in lines]
    obtain(model)
    ref = resolve_model(model)
    training = Training.of(texts, ref, epochs=epochs, seed=seed, rank=rank, rate=rate, batch=batch)
    folders = {number: output.with_name(f"{output.name}-epoch-{number}") for number in earlier} | {epochs: output}
    for number, folder in folders.items():
        _require_same(folder, training.after(number))
    missing = {number: folder for number, folder in folders.items() if not folder.exists()}
    if not missing:
        typer.echo(f"{output} is there already, trained as asked: nothing to do", err=True)
        return Exit.DONE
    try:
        _train([(line.where, text) for line, text in zip(lines, texts, strict=True)], ref, training, missing)
    except KeyboardInterrupt:
        print("interrupted; adapters of earlier epochs are kept, and the same command starts again", file=sys.stderr)
        sys.exit(Exit.INTERRUPTED)
    for folder in folders.values():
        typer.echo(str(folder))
    return Exit.DONE


def _train(sentences: list[tuple[str, str]], ref: ModelRef, training: Training, folders: dict[int, Path]) -> None:
    """Train up to the last epoch of `folders`, and write one adapter for each epoch."""
    import torch

    from poolbench_driver.models.training import load_base, new_adapter, save_adapter, train_adapter

    model, tokenizer = load_base(ref)
    _check_lengths(sentences, tokenizer)
    adapted = new_adapter(model, training.rank, training.seed).to("cuda" if torch.cuda.is_available() else "cpu")

    def save(epoch: int) -> None:
        if epoch in folders:
            folders[epoch].parent.mkdir(parents=True, exist_ok=True)
            save_adapter(adapted, training.after(epoch), folders[epoch])

    train_adapter(
        adapted,
        tokenizer,
        [text for _, text in sentences],
        name=folders[max(folders)].name,
        epochs=training.epochs,
        batch=training.batch_size,
        rate=training.learning_rate,
        after_epoch=save,
    )


def _earlier_epochs(save_epochs: str | None, epochs: int) -> list[int]:
    """Return the epochs before the last one whose adapters are kept; raise ConfigError for others."""
    texts = [text.strip() for text in save_epochs.split(",")] if save_epochs else []
    if wrong := [text for text in texts if not (text.isdecimal() and 1 <= int(text) <= epochs)]:
        raise ConfigError(f"--save-epochs {wrong[0]!r}: an epoch is a number from 1 to {epochs} (--epochs)")
    return sorted({int(text) for text in texts} - {epochs})


def _require_same(folder: Path, training: Training) -> None:
    """Raise ConfigError if a folder is there and does not hold what this command makes."""
    from poolbench_driver.models.training import read_record

    if folder.exists() and read_record(folder) != training.as_record():
        raise ConfigError(f"{folder} is there and was not trained in this way; remove it, or name another --output")


def _check_lengths(sentences: list[tuple[str, str]], tokenizer: Any) -> None:
    """Raise InputError for a sentence of one token, and print how many are too long to be read whole."""
    from poolbench_driver.models.training import MAX_TOKENS

    lengths = [len(ids) for ids in tokenizer([text for _, text in sentences])["input_ids"]]
    for (where, text), length in zip(sentences, lengths, strict=True):
        if length < 2:
            raise InputError(f"{where}: {text!r} is one token, which nothing can be learned from; remove it")
    if long := sum(length > MAX_TOKENS for length in lengths):
        print(f"note: {long} of {len(lengths)} sentences have more than {MAX_TOKENS} tokens; their rest is left out",
              file=sys.stderr)  # fmt: skip
