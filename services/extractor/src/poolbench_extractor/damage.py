"""What steering does to given texts: their likelihood, the divergence from the unsteered model, and promoted tokens.

The vector is added to the output of a block at every position of a text. The blocks up to it run once for each text,
the others once more for each edit. All figures are computed from the logits of the whole vocabulary, in float32.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor, nn

from poolbench.contracts.tables import DAMAGE, LENS, table_from_rows, vector_matrix
from poolbench.contracts.wire import UNSTEERED
from poolbench.errors import CellError, InputError, LayerError
from poolbench.statuses import Status
from poolbench_extractor.core import Progress, run_batches
from poolbench_extractor.encode import DEFAULT_READING, Encoded, PassageTexts, Reading, encode
from poolbench_extractor.forward.capture import Captured
from poolbench_extractor.forward.gradients import (
    HeadError,
    Targets,
    final_states,
    head_logits,
    lacks_loss,
    vocabulary_chunks,
)
from poolbench_extractor.forward.resuming import resumed
from poolbench_extractor.models.decoder import Decoder

#: Tokens of each side of a lens.
NUM_TOKENS = 10


@dataclass(frozen=True)
class Edit:
    """A unit direction and its coefficient."""

    direction_id: str
    unit_D: Tensor  # float32
    strength: float
    alpha: float


def edits_of(directions: pa.Table, direction_ids: Sequence[str], strengths: Sequence[float], norm: float) -> list[Edit]:
    """Return each direction of a table at each strength but 0.

    Args:
        norm: Unit of strength.

    Raises:
        InputError: The table has no such direction, or only null or a value that is not finite in its place.
    """
    rows = dict(zip(directions["direction_id"].to_pylist(), vector_matrix(directions["vector"]), strict=True))
    edits = []
    for direction_id in direction_ids:
        if direction_id not in rows:
            raise InputError(f"the table of directions has no {direction_id}; it has {', '.join(rows)}")
        unit_D = torch.tensor(rows[direction_id])
        if not bool(unit_D.isfinite().all()):
            raise InputError(f"direction {direction_id} is null or not finite; name another one")
        edits += [Edit(direction_id, unit_D, strength, strength * norm) for strength in strengths if strength]
    return edits


def damage(
    decoder: Decoder,
    passages: PassageTexts,
    edits: Mapping[str, Sequence[Edit]],
    layer: int,
    *,
    reading: Reading = DEFAULT_READING,
    progress: Progress | None = None,
) -> dict[str, tuple[pa.Table, pa.Table]]:
    """Return DAMAGE and the measured rows of LENS of the edits of each name, on the same texts.

    A token counts if it is real and has a position before it. A text without figures has rows with a reason.

    Args:
        layer: Block to whose output the vectors are added.

    Raises:
        LayerError: The model has no such block.
    """
    if not decoder.is_block(layer):
        raise LayerError(f"layer {layer} is out of range: {decoder.source} has blocks 0..{decoder.num_blocks - 1}")
    encoded = encode(decoder, passages, reading)
    work = _Damage(decoder, encoded, [edit for of_name in edits.values() for edit in of_name], layer)
    run_batches(decoder, encoded, work.consume, layers=[layer], reading=reading, progress=progress)
    tables, start = {}, 0
    for name, of_name in edits.items():
        columns = range(start, start + len(of_name))
        start += len(of_name)
        rows = [*work.rows(0), *(row for column in columns for row in work.rows(column + 1))]
        tokens = [row for column in columns for row in work.tokens(column)]
        tables[name] = table_from_rows(rows, DAMAGE), table_from_rows(tokens, LENS)
    return tables


@dataclass
class _Damage:
    """What is known of texts while batches complete.

    Attributes:
        sums: By text, number of its tokens, and sums over them for the unsteered model and each edit: log-likelihood
            and divergence [1 + E, 2].
        change_EV: Change of the logits, summed over the tokens of all texts.
        errors: By text, why it has no figures.
    """

    decoder: Decoder
    encoded: Sequence[Encoded]
    edits: Sequence[Edit]
    layer: int
    sums: dict[int, tuple[int, Tensor]] = field(default_factory=dict)
    change_EV: Tensor | None = None
    errors: dict[int, CellError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.errors |= {passage.index: passage.error for passage in self.encoded if passage.error is not None}
        if (refusal := lacks_loss(self.decoder)) is not None:
            self.errors |= {passage.index: refusal for passage in self.encoded}

    @torch.inference_mode()
    def consume(self, batch: Sequence[Encoded], captured: Captured) -> None:
        """Read one batch. Sums are added at the end: if memory runs out before, the halves of the batch follow."""
        targets = Targets.of(batch, captured.starts)
        if all(passage.index in self.errors for passage in batch):
            return
        try:
            sums_BE2, change_EV = self._sums(captured, targets)
        except HeadError as error:
            refusal = CellError(Status.FAILED, f"{self.decoder.source}: {error}")
            self.errors |= {passage.index: refusal for passage in batch}
            return
        for passage, num_tokens, sums_E2 in zip(batch, targets.count.tolist(), sums_BE2, strict=True):
            if not num_tokens:
                reason = f"passage {passage.context.passage_id!r} has no token to predict"
                self.errors[passage.index] = CellError(Status.TOO_FEW, reason)
            else:
                self.sums[passage.index] = num_tokens, sums_E2
        self.change_EV = change_EV if self.change_EV is None else self.change_EV + change_EV

    def _sums(self, captured: Captured, targets: Targets) -> tuple[Tensor, Tensor]:
        """Return log-likelihood and divergence of each text of a batch, float64 [B, 1 + E, 2], and `change_EV`."""
        decoder, num_tokens = self.decoder, len(targets.token)
        values_N12 = torch.zeros(num_tokens, 1 + len(self.edits), 2, dtype=torch.float64)
        change_EV = torch.zeros(0, 0, dtype=torch.float64)
        with decoder.lock:
            unsteered, states = None, list[Tensor]()
            for h_BTD in self._steered(captured):
                output = resumed(decoder, captured, self.layer, h_BTD)
                unsteered = unsteered or output  # the head is asked with the states of others in its place
                states_BTD = final_states(output)
                row, position = (column.to(states_BTD.device) for column in (targets.row, targets.position))
                states.append(states_BTD[row, position])
            for chunk in vocabulary_chunks(decoder, num_tokens):
                base_nV = head_logits(decoder, unsteered, states[0][chunk]).float()
                log_p_nV, token_n = base_nV.log_softmax(-1), targets.token[chunk, None].to(base_nV.device)
                values_N12[chunk, 0, 0] = log_p_nV.gather(1, token_n)[:, 0].double().cpu()
                changes = []
                for number in range(1, len(states)):
                    logits_nV = head_logits(decoder, unsteered, states[number][chunk]).float()
                    log_q_nV = logits_nV.log_softmax(-1)
                    kl_n = (log_p_nV.exp() * (log_p_nV - log_q_nV)).sum(-1)
                    values_N12[chunk, number, 0] = log_q_nV.gather(1, token_n)[:, 0].double().cpu()
                    values_N12[chunk, number, 1] = kl_n.double().cpu()
                    changes.append((logits_nV - base_nV).sum(0).double().cpu())
                if changes:
                    total_EV = torch.stack(changes)
                    change_EV = change_EV + total_EV if change_EV.numel() else total_EV
        sums = torch.zeros(len(targets.count), *values_N12.shape[1:], dtype=torch.float64)
        return sums.index_add_(0, targets.row, values_N12), change_EV

    def _steered(self, captured: Captured) -> Iterator[Tensor]:
        """Yield the states of the layer [B, T, D] as they are, and then under each edit; rounded once, from float32."""
        h_BTD = captured.states[self.layer]
        yield h_BTD
        for edit in self.edits:
            yield (h_BTD.float() + edit.alpha * edit.unit_D.to(h_BTD.device)).to(h_BTD.dtype)

    def rows(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of an edit, counted from 1; 0 is the unsteered model."""
        edit = self.edits[number - 1] if number else Edit(UNSTEERED, torch.zeros(0), 0.0, 0.0)
        of_edit = {"direction_id": edit.direction_id, "strength": edit.strength, "alpha": edit.alpha}
        for passage in self.encoded:
            row = {"passage_id": passage.context.passage_id, **of_edit, "status": Status.OK}
            error = self.errors.get(passage.index)
            if error is None:
                num_tokens, sums_E2 = self.sums[passage.index]
                log_likelihood, divergence = sums_E2[number].tolist()
                figures = {"log_likelihood": log_likelihood, "num_tokens": num_tokens, "kl": divergence / num_tokens}
                if bool(sums_E2[number].isfinite().all()):
                    yield row | figures
                    continue
                error = CellError(Status.NON_FINITE, "the logits hold NaN or infinity")
            yield row | {"status": error.status, "reason": str(error)}

    def tokens(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the tokens whose logits an edit has changed most, mean over the tokens of all texts."""
        num_tokens = sum(count for count, _ in self.sums.values())
        if self.change_EV is not None and num_tokens:
            edit = self.edits[number]
            change_V = self.change_EV[number] / num_tokens
            yield from token_rows(self.decoder, change_V, direction_id=edit.direction_id, strength=edit.strength)


def token_rows(decoder: Decoder, change_V: Tensor, **of_edit: Any) -> Iterator[dict[str, Any]]:
    """Yield rows of LENS: the tokens with the highest and the lowest change of their logits.

    The mean change over the vocabulary is taken off, because it changes no probability.
    """
    change_V = change_V - change_V.mean()
    change_V = change_V[: len(decoder.tokenizer)]  # some models have more rows than their tokenizer has tokens
    for is_promoted in (True, False):
        values, ids = change_V.topk(min(NUM_TOKENS, len(change_V)), largest=is_promoted)
        for rank, (value, token_id) in enumerate(zip(values.tolist(), ids.tolist(), strict=True), start=1):
            token = {"token_id": token_id, "token": decoder.tokenizer.decode([token_id]), "value": value}
            yield {**of_edit, "promoted": is_promoted, "rank": rank, **token, "status": Status.OK}


@torch.inference_mode()
def lens(decoder: Decoder, direction_id: str, unit_D: Tensor) -> pa.Table:
    """Return LENS of a direction through the model's own head: the logits W_U (g * v), unit v.

    The weight g of the last norm is folded into the unembedding, and a LayerNorm first takes the mean off v. What a
    norm divides by depends on the token, and is left out: it changes the scale of the values, not their order.

    References:
        nostalgebraist (2020), "interpreting GPT: the logit lens"; Elhage et al. (2021), "A Mathematical Framework for
        Transformer Circuits" (folding of norms).
    """
    try:
        change_V = _through_head(decoder, unit_D)
    except CellError as error:
        row = {"direction_id": direction_id, "status": error.status, "reason": str(error)}
        return table_from_rows([row], LENS)
    return table_from_rows(list(token_rows(decoder, change_V, direction_id=direction_id, strength=None)), LENS)


def _through_head(decoder: Decoder, unit_D: Tensor) -> Tensor:
    """Return W_U (g * v) [V], float64. Raise CellError if the model lacks a head, or a norm before it."""
    head, norm = decoder.model.get_output_embeddings(), _last_norm(decoder.backbone)
    if head is None or not decoder.has_head:
        raise CellError(Status.FAILED, f"{decoder.source} has no language-model head")
    if norm is None:
        raise CellError(Status.NOT_IMPLEMENTED, f"no norm before the head of {decoder.source} was found")
    weight = next(head.parameters())
    like = {"device": weight.device, "dtype": weight.dtype}
    sign_D = torch.ones_like(unit_D)
    sign_D[1::2] = -1  # mean 0 and mean square 1: a norm multiplies it by g and adds its bias
    with decoder.lock:
        up_D, down_D, ones_D = (norm(x_D[None, None].to(**like))[0, 0] for x_D in (sign_D, -sign_D, sign_D.abs()))
        g_D = (up_D - down_D).float() / (2 * sign_D.to(up_D.device))
        takes_mean = torch.allclose(
            ones_D, (up_D + down_D) / 2, atol=1e-3
        )  # of equal numbers nothing but the bias is left
        v_D = unit_D.to(g_D.device) - (unit_D.mean() if takes_mean else 0.0)
        z_D = (g_D * v_D).to(**like)
        change_V: Tensor = head(z_D[None]).float() - head(torch.zeros_like(z_D)[None]).float()
    return change_V[0].double().cpu()


def _last_norm(backbone: nn.Module) -> nn.Module | None:
    """Return the norm behind the blocks: the last one beside them."""
    norms = [module for module in backbone.children() if "norm" in type(module).__name__.lower()]
    return norms[-1] if norms else None
