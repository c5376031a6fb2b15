"""Loss recovered by autoencoders at a layer, and their share of dense features.

Both follow the definitions of SAEBench (Karvonen et al., 2025). Loss recovered is (zero - own) / (zero - clean). `zero`
is the loss with the states replaced by zeros, `own` with the states replaced by their reconstruction, and `clean` with
unchanged states. Sinks and special tokens always keep their states, because autoencoders do not read them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.pooling.sinks import SinkRule
from poolbench.statistics.bootstrap import group_mean_resamples, percentile_interval
from poolbench.statuses import Status
from poolbench_extractor.core import Progress, run_batches
from poolbench_extractor.encode import DEFAULT_READING, Encoded, PassageTexts, Reading, encode
from poolbench_extractor.features import BLOCK_VALUES, Encoder, counted_positions
from poolbench_extractor.forward.capture import Captured, resumed
from poolbench_extractor.forward.gradients import HeadError, Targets, head_losses, lacks_loss
from poolbench_extractor.models.decoder import Decoder

LOSS_RECOVERED, DENSE_SHARE = "ce.loss_recovered", "ce.dense_share"
#: A feature that is active on more than this share of the tokens is dense.
DENSE = 0.1


@torch.inference_mode()
def losses_from(decoder: Decoder, captured: Captured, targets: Targets, layer: int, h_BTD: Tensor) -> Tensor:
    """Return the loss of each passage of a batch, with the states of a layer replaced.

    Only the blocks after the layer run.

    Args:
        captured: Result of `capture` for the batch, with the states of the layer.
        targets: The tokens that are predicted.
        h_BTD: States that replace `captured.states[layer]`. The captured states must not be changed in place.

    Returns:
        Loss in nats, summed over the predicted tokens of each passage, float64 [B].

    Raises:
        HeadError: The model has no language-model head that reads the output of its decoder.
    """
    with decoder.lock:
        losses_N = head_losses(decoder, resumed(decoder, captured, layer, h_BTD), targets).double().cpu()
    return torch.zeros(len(targets.count), dtype=torch.float64).index_add_(0, targets.row, losses_N)


def recovered(
    decoder: Decoder,
    passages: PassageTexts,
    encoders: Mapping[str, Encoder],
    layer: int,
    *,
    groups: Sequence[object] = (),
    num_bootstrap: int = 1000,
    seed: int = 0,
    reading: Reading = DEFAULT_READING,
    progress: Progress | None = None,
) -> dict[str, list[Measure]]:
    """Return loss recovered and the share of dense features for each encoder.

    The blocks up to the layer run once for each text. The blocks after the layer run twice for each text, and once more
    for each encoder that can reconstruct the states.

    Args:
        encoders: Encoders by role.
        groups: Group of each text, such as its pair. If empty, each text is its own group.
        num_bootstrap: Number of resamples of the groups.
        seed: Seed of the resamples.

    Returns:
        Measures by role. Their details hold the losses, in nats per token.
    """
    encoded = encode(decoder, passages, reading)
    work = _Recovery(decoder, encoded, encoders, layer, reading.sinks, groups or range(len(encoded)))
    run_batches(decoder, encoded, work.consume, layers=[layer], reading=reading, progress=progress)
    return {role: list(work.measures(role, num_bootstrap, seed)) for role in encoders}


@dataclass
class _Recovery:
    """Losses and counts while batches complete.

    Attributes:
        losses: For each text, the number of predicted tokens, and the summed losses with unchanged states, with zeros,
            and with each reconstruction.
        active: By role, the number of tokens on which each feature is active [d].
        num_tokens: Number of tokens that were read.
        errors: For each text that cannot be measured, the reason.
        refusal: Why no text has a loss, or None.
    """

    decoder: Decoder
    encoded: Sequence[Encoded]
    encoders: Mapping[str, Encoder]
    layer: int
    sinks: SinkRule
    groups: Sequence[object]
    losses: dict[int, list[float]] = field(default_factory=dict)
    active: dict[str, Tensor] = field(default_factory=dict)
    num_tokens: int = 0
    errors: dict[int, CellError] = field(default_factory=dict)
    refusal: CellError | None = None

    def __post_init__(self) -> None:
        self.errors |= {passage.index: passage.error for passage in self.encoded if passage.error is not None}
        self.refusal = lacks_loss(self.decoder)

    def consume(self, batch: Sequence[Encoded], captured: Captured) -> None:
        """Add the losses and counts of one batch.

        They are added at the end: if memory runs out earlier, the two halves of the batch are run instead.
        """
        h_BTD = captured.states[self.layer]
        counted_BT = torch.zeros(h_BTD.shape[:2], dtype=torch.bool)
        for row, (passage, h_TD) in enumerate(zip(batch, captured.states_of(self.layer), strict=True)):
            if bool(h_TD.isfinite().all()):
                counted_BT[row, captured.starts[row] + counted_positions(passage, h_TD, self.sinks)] = True
            else:
                self.errors[passage.index] = CellError(Status.NON_FINITE, "hidden states hold NaN or infinity")
        counted_BT = counted_BT.to(h_BTD.device)
        x_nD, active, targets = h_BTD[counted_BT].float(), dict[str, Tensor](), Targets.of(batch, captured.starts)
        if not len(x_nD):
            return
        columns = [self._losses(captured, targets, counted_BT, new_nD) for new_nD in self._replacements(x_nD, active)]
        for role, active_d in active.items():
            self.active[role] = active_d + self.active.get(role, 0)
        self.num_tokens += len(x_nD)
        if self.refusal is None:
            for passage, num_tokens, *losses in zip(batch, targets.count.tolist(), *columns, strict=True):
                if num_tokens and passage.index not in self.errors:
                    self.losses[passage.index] = [num_tokens, *losses]

    def _replacements(self, x_nD: Tensor, active: dict[str, Tensor]) -> Iterator[Tensor]:
        """Yield the replacements of states [n, D] in the order of `losses`, and count their active features."""
        if self._rebuilding:
            yield x_nD
            yield torch.zeros_like(x_nD)
        for role, encoder in self.encoders.items():
            active[role], rebuilt = torch.zeros(encoder.num_features, dtype=torch.long), list[Tensor]()
            for part_nD in x_nD.split(max(1, BLOCK_VALUES // encoder.num_features)):
                values_nd = encoder.encode(part_nD)
                active[role] += (values_nd > 0).sum(dim=0).cpu()
                if encoder.decode is not None:
                    rebuilt.append(encoder.decode(values_nd))
            if rebuilt:
                yield torch.cat(rebuilt)

    def _losses(self, captured: Captured, targets: Targets, counted_BT: Tensor, new_nD: Tensor) -> list[float]:
        """Return the loss of each text with the counted states replaced by `new_nD`.

        The list is empty if the model has no loss.
        """
        if self.refusal is not None:
            return []
        new_BTD = captured.states[self.layer].clone()
        new_BTD[counted_BT] = new_nD.to(new_BTD.dtype)
        try:
            return losses_from(self.decoder, captured, targets, self.layer, new_BTD).tolist()
        except HeadError as error:
            self.refusal = CellError(Status.FAILED, f"{self.decoder.source}: {error}")
            return []

    @property
    def _rebuilding(self) -> list[str]:
        """Return the roles of the encoders that can reconstruct states."""
        return [role for role, encoder in self.encoders.items() if encoder.decode is not None]

    def measures(self, role: str, num_bootstrap: int, seed: int) -> Iterator[Measure]:
        """Yield loss recovered and the share of dense features of one encoder."""
        yield self._loss_recovered(role, num_bootstrap, seed)
        yield self._dense_share(role)

    def _loss_recovered(self, role: str, num_bootstrap: int, seed: int) -> Measure:
        refusal = self.refusal or (_NO_WAY_BACK if self.encoders[role].decode is None else None)
        if refusal is not None:
            return Measure.failed(LOSS_RECOVERED, refusal)
        if not self.losses:
            return Measure.failed(LOSS_RECOVERED, self._reason())
        columns = [0, 1, 2, 3 + self._rebuilding.index(role)]
        rows = np.array([self.losses[index] for index in sorted(self.losses)])[:, columns]
        finite = np.isfinite(rows).all(axis=1)
        rows, groups = rows[finite], np.array([self.groups[index] for index in sorted(self.losses)])[finite]
        if not len(rows):
            return Measure.null(LOSS_RECOVERED, Status.NON_FINITE, "the loss is NaN or infinite on every text")
        num_tokens, clean, zero, reconstructed = (float(column_sum) for column_sum in rows.sum(axis=0))
        details = {"loss": clean, "loss_reconstructed": reconstructed, "loss_zero": zero}
        details = {name: value / num_tokens for name, value in details.items()} | {"num_tokens": num_tokens}
        fields: dict[str, Any] = {
            "n": len(rows),
            "num_groups": len(np.unique(groups)),
            "coverage": len(rows) / len(self.encoded),
        }
        fields |= {"seed": seed, "ci_method": "bootstrap over groups of texts, percentile", "details": details}
        if zero <= clean:
            reason = "zeros in place of the states do not raise the loss: nothing can be recovered"
            return Measure.null(LOSS_RECOVERED, Status.NO_EFFECT, reason, **fields)
        recovered_n2 = rows[:, [2, 2]] - rows[:, [3, 1]]
        drawn = group_mean_resamples(recovered_n2, groups, num_resamples=num_bootstrap, seed=seed)
        above_R, below_R = np.where(drawn[:, 1:] > 0, drawn, np.nan).T
        interval = percentile_interval(above_R / below_R) if fields["num_groups"] > 1 else None
        return Measure.of(LOSS_RECOVERED, (zero - reconstructed) / (zero - clean), interval, **fields)

    def _dense_share(self, role: str) -> Measure:
        if role not in self.active:
            return Measure.failed(DENSE_SHARE, self._reason())
        dense_d = self.active[role] > DENSE * self.num_tokens
        coverage = 1 - len(self.errors) / len(self.encoded)
        details = {"num_tokens": self.num_tokens}
        return Measure.of(
            DENSE_SHARE, float(dense_d.double().mean()), n=len(dense_d), coverage=coverage, details=details
        )

    def _reason(self) -> CellError:
        """Return the error of one text, as an example of why no text could be measured."""
        return next(iter(self.errors.values()), CellError(Status.TOO_FEW, "no text has a token to predict"))


_NO_WAY_BACK = CellError(Status.NOT_IMPLEMENTED, "no reconstruction: these features have no way back to states")
