"""Effects of steering on given texts: likelihood, divergence from the unsteered model, and promoted tokens.

The vector is added to the output of a block at every position of a text. The blocks up to this block run once for each
text. The blocks after it run once for the unsteered model and once for each edit. All values are computed from the
logits of the whole vocabulary, in float32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from poolbench.contracts.tables import DAMAGE, LENS, table_from_rows, vector_matrix
from poolbench.contracts.wire import UNSTEERED
from poolbench.errors import CellError, InputError, LayerError
from poolbench.statuses import Status
from poolbench_extractor.core import Progress, run_batches
from poolbench_extractor.encode import DEFAULT_READING, Encoded, PassageTexts, Reading, encode
from poolbench_extractor.forward import gradients
from poolbench_extractor.forward.capture import Captured, resumed
from poolbench_extractor.models.decoder import Decoder

#: Tokens of each side of a lens.
NUM_TOKENS = 10


@dataclass(frozen=True)
class Edit:
    """A steering edit: a unit direction, its strength, and the coefficient `alpha` that multiplies the direction."""

    direction_id: str
    unit_D: Tensor  # float32
    strength: float
    alpha: float


def edits_of(directions: pa.Table, direction_ids: Sequence[str], strengths: Sequence[float], norm: float) -> list[Edit]:
    """Return one edit for each direction and each nonzero strength.

    Args:
        strengths: Coefficients in units of `norm`.

    Raises:
        InputError: A direction is not in the table, or its vector is not finite.
    """
    rows = dict(zip(directions["direction_id"].to_pylist(), vector_matrix(directions["vector"]), strict=True))
    for direction_id in direction_ids:
        if direction_id not in rows:
            raise InputError(f"the table of directions has no {direction_id}; it has {', '.join(rows)}")
        if not bool(torch.tensor(rows[direction_id]).isfinite().all()):
            raise InputError(f"direction {direction_id} is null or not finite; name another one")
    units = [(direction_id, torch.tensor(rows[direction_id])) for direction_id in direction_ids]
    return [
        Edit(name, unit_D, strength, strength * norm) for name, unit_D in units for strength in strengths if strength
    ]


def damage(
    decoder: Decoder,
    passages: PassageTexts,
    edits: Sequence[Edit],
    layer: int,
    *,
    reading: Reading = DEFAULT_READING,
    progress: Progress | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Return a DAMAGE table of the edits, and a LENS table with the mean change of the logits under each edit.

    A token counts if it is real and has a preceding position. If a text cannot be measured, its rows carry the reason.

    Args:
        layer: Block to whose output the vectors are added.

    Raises:
        LayerError: The model has no such block.
    """
    if not decoder.is_block(layer):
        raise LayerError(f"layer {layer} is out of range: {decoder.source} has blocks 0..{decoder.num_blocks - 1}")
    work = _Damage(decoder, encode(decoder, passages, reading), edits, layer)
    run_batches(decoder, work.encoded, work.consume, layers=[layer], reading=reading, progress=progress)
    rows = [row for number in range(1 + len(edits)) for row in work.rows(number)]
    num_tokens = sum(count for count, _ in work.sums.values())
    tokens = [
        row
        for edit, change_V in zip(edits, work.change_EV, strict=False)  # without a token, nothing has changed
        for row in token_rows(decoder, change_V / num_tokens, direction_id=edit.direction_id, strength=edit.strength)
    ]
    return table_from_rows(rows, DAMAGE), table_from_rows(tokens, LENS)


@dataclass
class _Damage:
    """Sums over texts while batches complete.

    Attributes:
        sums: For each text, the number of its tokens, and the sums of their log-likelihood and divergence for the
            unsteered model and each edit [1 + E, 2].
        change_EV: Change of the logits under each edit, summed over the tokens of all texts.
        errors: For each text that cannot be measured, the reason.
    """

    decoder: Decoder
    encoded: Sequence[Encoded]
    edits: Sequence[Edit]
    layer: int
    sums: dict[int, tuple[int, Tensor]] = field(default_factory=dict)
    change_EV: Tensor = field(default_factory=lambda: torch.zeros(0, 1, dtype=torch.float64))
    errors: dict[int, CellError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        refusal = gradients.lacks_loss(self.decoder)
        self.errors |= {item.index: error for item in self.encoded if (error := item.error or refusal) is not None}

    @torch.inference_mode()
    def consume(self, batch: Sequence[Encoded], captured: Captured) -> None:
        """Add the sums of one batch.

        The sums are added at the end: if memory runs out earlier, the two halves of the batch are run instead.
        """
        batch_errors = {passage.index: self.errors.get(passage.index) for passage in batch}
        if all(batch_errors.values()):
            return
        targets = gradients.Targets.of(batch, captured.starts)
        try:
            sums_BE2, change_EV = self._sums(captured, targets)
        except gradients.HeadError as error:
            self.errors |= dict.fromkeys(batch_errors, CellError(Status.FAILED, f"{self.decoder.source}: {error}"))
            return
        for passage, num_tokens, sums_E2 in zip(batch, targets.count.tolist(), sums_BE2, strict=True):
            if num_tokens:
                self.sums[passage.index] = num_tokens, sums_E2
            else:
                reason = f"passage {passage.context.passage_id!r} has no token to predict"
                self.errors[passage.index] = CellError(Status.TOO_FEW, reason)
        if len(change_EV):
            self.change_EV = self.change_EV + change_EV if len(self.change_EV) else change_EV

    def _sums(self, captured: Captured, targets: gradients.Targets) -> tuple[Tensor, Tensor]:
        """Return the summed log-likelihood and divergence of each text, float64 [B, 1 + E, 2], and `change_EV`."""
        decoder, h_BTD, states, changes = self.decoder, captured.states[self.layer], list[Tensor](), list[Tensor]()
        values_N12 = torch.zeros(len(targets.token), 1 + len(self.edits), 2, dtype=torch.float64)
        with decoder.lock:
            unsteered = resumed(decoder, captured, self.layer, h_BTD)
            outputs = (resumed(decoder, captured, self.layer, new_BTD) for new_BTD in self._steered(h_BTD))
            for output in (unsteered, *outputs):
                z_BTD = gradients.final_states(output)
                states.append(z_BTD[targets.row.to(z_BTD.device), targets.position.to(z_BTD.device)])
            for chunk in gradients.vocabulary_chunks(decoder, len(targets.token)):
                base_nV = gradients.head_logits(decoder, unsteered, states[0][chunk]).float()
                log_p_nV, token_n1 = base_nV.log_softmax(-1), targets.token[chunk, None].to(base_nV.device)
                change_EV = list[Tensor]()
                for number, z_ND in enumerate(states):
                    logits_nV = gradients.head_logits(decoder, unsteered, z_ND[chunk]).float() if number else base_nV
                    log_q_nV = logits_nV.log_softmax(-1)
                    values_N12[chunk, number, 0] = log_q_nV.gather(1, token_n1)[:, 0].double().cpu()
                    values_N12[chunk, number, 1] = (log_p_nV.exp() * (log_p_nV - log_q_nV)).sum(-1).double().cpu()
                    change_EV.append((logits_nV - base_nV).sum(0).double().cpu())
                changes.append(torch.stack(change_EV)[1:])
        sums = torch.zeros(len(targets.count), *values_N12.shape[1:], dtype=torch.float64)
        total_EV = torch.stack(changes).sum(0) if changes else torch.zeros(0, 1)
        return sums.index_add_(0, targets.row, values_N12), total_EV

    def _steered(self, h_BTD: Tensor) -> Iterator[Tensor]:
        """Yield the states with each edit added, computed in float32 and rounded once."""
        for edit in self.edits:
            yield (h_BTD.float() + edit.alpha * edit.unit_D.to(h_BTD.device)).to(h_BTD.dtype)

    def rows(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the DAMAGE rows of edit `number`, counted from 1. Number 0 is the unsteered model."""
        edit = self.edits[number - 1] if number else Edit(UNSTEERED, torch.zeros(0), 0.0, 0.0)
        of_edit = {"direction_id": edit.direction_id, "strength": edit.strength, "alpha": edit.alpha}
        for passage in self.encoded:
            row, error = {"passage_id": passage.context.passage_id, **of_edit}, self.errors.get(passage.index)
            if error is None and not bool(self.sums[passage.index][1][number].isfinite().all()):
                error = CellError(Status.NON_FINITE, "the logits hold NaN or infinity")
            if error is not None:
                yield row | {"status": error.status, "reason": str(error)}
                continue
            num_tokens, sums_E2 = self.sums[passage.index]
            log_likelihood, divergence = sums_E2[number].tolist()
            figures = {"log_likelihood": log_likelihood, "num_tokens": num_tokens, "kl": divergence / num_tokens}
            yield row | figures | {"status": Status.OK}


def token_rows(decoder: Decoder, change_V: Tensor, **of_edit: Any) -> Iterator[dict[str, Any]]:
    """Yield LENS rows for the tokens whose logits rise most and fall most.

    The mean change over the vocabulary is subtracted, because it changes no probability.
    """
    change_V = (change_V - change_V.mean())[
        : len(decoder.tokenizer)
    ]  # a model may have more rows than there are tokens
    for is_promoted in (True, False):
        values, ids = change_V.topk(min(NUM_TOKENS, len(change_V)), largest=is_promoted)
        for value, token_id in zip(values.tolist(), ids.tolist(), strict=True):
            token = {"token_id": token_id, "token": decoder.tokenizer.decode([token_id]), "value": value}
            yield {**of_edit, "promoted": is_promoted, **token, "status": Status.OK}


@torch.inference_mode()
def lens(decoder: Decoder, direction_id: str, unit_D: Tensor) -> pa.Table:
    """Return LENS of a direction: the tokens with the highest and the lowest logits W_U (g * v), for unit v.

    The weight g of the last norm is folded into the unembedding. For a LayerNorm, the mean of v is subtracted first.
    The divisor of the norm is left out, because it depends on the token and changes only the scale of the values.
    If the model lacks a head or a last norm, the table has one row with status `not_implemented`.

    References:
        nostalgebraist (2020), "interpreting GPT: the logit lens"; Elhage et al. (2021), "A Mathematical Framework for
        Transformer Circuits" (folding of norms).
    """
    head = decoder.model.get_output_embeddings() if decoder.has_head else None
    norms = [module for module in decoder.backbone.children() if "norm" in type(module).__name__.lower()]
    if head is None or not norms:  # the norm behind the blocks is the last one beside them
        reason = f"{decoder.source} lacks {'a language-model head' if head is None else 'a norm before its head'}"
        row = {"direction_id": direction_id, "status": Status.NOT_IMPLEMENTED, "reason": reason}
        return table_from_rows([row], LENS)
    sign_D = torch.ones_like(unit_D)
    sign_D[1::2] = -1  # mean 0 and mean square 1: a norm multiplies it by g and adds its bias
    with decoder.lock:
        weight = next(head.parameters())
        inputs = torch.stack([sign_D, -sign_D, sign_D.abs()])[None].to(weight)
        up_D, down_D, ones_D = norms[-1](inputs)[0].float().to(unit_D.device)
        # A norm that takes the mean off leaves nothing of equal numbers but its bias.
        mean = unit_D.mean() if torch.allclose(ones_D, (up_D + down_D) / 2, atol=1e-3) else 0.0
        z_D = (up_D - down_D) / (2 * sign_D) * (unit_D - mean)
        logits_2V = head(torch.stack([z_D, torch.zeros_like(z_D)]).to(weight)).double().cpu()
    rows = token_rows(decoder, logits_2V[0] - logits_2V[1], direction_id=direction_id, strength=None)
    return table_from_rows(list(rows), LENS)
