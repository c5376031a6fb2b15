"""Pooling of sparse-autoencoder features over passages. Only the nonzero means leave the device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from poolbench.contracts.tables import FEATURES, table_from_rows
from poolbench.directions.sae import SparseAutoencoder
from poolbench.errors import CellError, InputError
from poolbench.pooling.context import tokens_of_words
from poolbench.pooling.sinks import SinkRule
from poolbench.statuses import Status
from poolbench_extractor.core import Progress, run_batches, shared_forwards
from poolbench_extractor.encode import DEFAULT_READING, Encoded, PassageTexts, Reading, encode
from poolbench_extractor.forward.capture import Captured
from poolbench_extractor.models.decoder import Decoder

#: Largest number of feature values that are held at once.
BLOCK_VALUES = 1 << 26
#: A product with more than one of so many values is computed densely.
_DENSE = 16
ALL, MARKED, UNMARKED = "all", "marked", "unmarked"
#: Character ranges of a passage, as start and end.
Marks = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Encoder:
    """A function from the states of tokens [T, D], float32, to features [T, d].

    Attributes:
        decode: Function from features back to states, or None if the encoder has no decoder.
    """

    id: str
    num_features: int
    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor] | None = None


def autoencoder(sae: SparseAutoencoder, device: torch.device) -> Encoder:
    """Return the encoder of an autoencoder on a device. It computes the features of `SparseAutoencoder.encode`."""
    tensors = {name: _moved(value, device) for name, value in sae.vectors.items()}
    w_enc, w_dec, b_dec = (_moved(tensor, device) for tensor in (sae.w_enc, sae.w_dec, sae.b_dec))

    def encode(x_TD: Tensor) -> Tensor:
        projected_Td = (x_TD - b_dec if sae.apply_b_dec_to_input else x_TD) @ w_enc
        if sae.architecture == "gated":
            open_Td = projected_Td + tensors["b_gate"] > 0
            return (projected_Td * tensors["r_mag"].exp() + tensors["b_mag"]).relu() * open_Td
        z_Td = projected_Td + tensors["b_enc"]
        if sae.architecture == "topk":
            top = z_Td.relu().topk(sae.k or 0, dim=1)
            return torch.zeros_like(z_Td).scatter_(1, top.indices, top.values)
        return z_Td.relu() * (z_Td > tensors["threshold"]) if "threshold" in tensors else z_Td.relu()

    return Encoder(sae.id, sae.num_features, encode, lambda values_Td: _weighted_rows(values_Td, w_dec) + b_dec)


def _weighted_rows(values_Td: Tensor, rows_dD: Tensor) -> Tensor:
    """Return `values_Td @ rows_dD`. If few values are nonzero, only their rows are read."""
    if int(values_Td.count_nonzero()) * _DENSE > values_Td.numel():
        return values_Td @ rows_dD
    token, feature = values_Td.nonzero(as_tuple=True)
    ends = token.bincount(minlength=len(values_Td)).cumsum(0)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    weights = values_Td[token, feature]
    return torch.nn.functional.embedding_bag(feature, rows_dD, starts, mode="sum", per_sample_weights=weights)


def random_twin(own: Encoder, width: int, seed: int, device: torch.device) -> Encoder:
    """Return an untrained encoder with as many random unit directions as `own` has features.

    On each token, the encoder keeps as many directions as `own` has active features, so width and L0 are equal. About
    half of the directions are positive on a token. If `own` has more active features, the twin has fewer than `own`.
    """
    drawn_Dd = torch.randn(width, own.num_features, generator=torch.Generator().manual_seed(seed))
    directions_Dd = (drawn_Dd / drawn_Dd.norm(dim=0)).to(device)

    def encode(x_TD: Tensor) -> Tensor:
        kept_T1 = (own.encode(x_TD) > 0).sum(dim=1, keepdim=True)
        z_Td = (x_TD @ directions_Dd).relu()
        most = max(1, int(kept_T1.max()))
        top = z_Td.topk(most, dim=1)
        activations = top.values * (torch.arange(most, device=device) < kept_T1)
        return torch.zeros_like(z_Td).scatter_(1, top.indices, activations)

    return Encoder(f"{own.id}-random-{seed}", own.num_features, encode)


def coordinates(width: int) -> Encoder:
    """Return an encoder whose features are the positive and the negative part of each coordinate of the states."""
    return Encoder(
        "coordinates",
        2 * width,
        lambda x_TD: torch.cat([x_TD.relu(), (-x_TD).relu()], dim=1),
        lambda values_Td: values_Td[:, :width] - values_Td[:, width:],
    )


def read_features(
    decoder: Decoder,
    passages: PassageTexts,
    encoders: Mapping[str, Encoder],
    layer: int,
    *,
    marks: Sequence[Marks] = (),
    reading: Reading = DEFAULT_READING,
    progress: Progress | None = None,
) -> dict[str, pa.Table]:
    """Pool the features of several encoders over every passage in one pass over the model.

    Args:
        encoders: Encoders by the role of their output table.
        marks: Marked character ranges of each passage. A passage with marks also has rows for its `marked` and
            `unmarked` parts.

    Returns:
        FEATURES by role, with the passages in the given order. Features are summed in float32.
    """
    encoded = encode(decoder, passages, reading)
    work = _Reading(encoded, encoders, layer, reading, list(marks) or [()] * len(encoded))
    run_batches(decoder, list(work.texts), work.consume, layers=[layer], reading=reading, progress=progress)
    return {role: work.table(role) for role in encoders}


def counted_positions(passage: Encoded, h_TD: Tensor, sinks: SinkRule) -> np.ndarray:
    """Return the positions whose features count: the real tokens.

    If the sink rule leaves out attention sinks, they do not count.
    """
    context = passage.context
    if not sinks.leave_out:
        return context.real
    norms_T = h_TD.float().norm(dim=-1).cpu().numpy()
    return context.without(sinks.find(norms_T, context.of_text)).real


def activations_of(encoder: Encoder, h_TD: Tensor, counted: np.ndarray, features: Sequence[int]) -> np.ndarray:
    """Return the activations of F features, float32 [T, F], with NaN at positions that do not count.

    Args:
        counted: Positions whose features count.

    Raises:
        InputError: The encoder has no such feature.
    """
    if max(features) >= encoder.num_features:
        raise InputError(f"feature {max(features)}: the autoencoder has the features 0 to {encoder.num_features - 1}")
    x_TD = h_TD[torch.from_numpy(counted).to(h_TD.device)].float()
    blocks = x_TD.split(max(1, BLOCK_VALUES // encoder.num_features))
    activations_TF = np.full((len(h_TD), len(features)), np.nan, dtype=np.float32)
    activations_TF[counted] = torch.cat([encoder.encode(block)[:, list(features)] for block in blocks]).cpu().numpy()
    return activations_TF


class Pooled(NamedTuple):
    """The features of one part of a passage: means over its tokens, mean L0, and the sum of squared errors.

    The sum of squared errors is None if the encoder has no decoder.
    """

    features: np.ndarray
    means: np.ndarray
    l0: float
    squared_error: float | None


@dataclass
class _Part:
    """One part of a passage: the number of its tokens, and the sums of their states and squared norms."""

    num_tokens: int
    sum_D: np.ndarray
    squared: float


@dataclass
class _Reading:
    """Sums and features of passages while batches complete."""

    encoded: Sequence[Encoded]
    encoders: Mapping[str, Encoder]
    layer: int
    reading: Reading
    marks: Sequence[Marks]
    parts: dict[tuple[int, str], _Part | CellError] = field(default_factory=dict)
    pooled: dict[tuple[str, int, str], Pooled] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shared = shared_forwards(self.encoded)
        self.texts = [passages[0] for passages in self.shared.values()]

    def consume(self, batch: Sequence[Encoded], captured: Captured) -> None:
        """Pool the features of one batch, in blocks of passages whose features fit into memory."""
        most = max(encoder.num_features for encoder in self.encoders.values())
        block, size = list[tuple[Encoded, Tensor]](), 0
        for text, h_TD in zip(batch, captured.states_of(self.layer), strict=True):
            if block and (size + len(h_TD)) * most > BLOCK_VALUES:
                self._pool(block)
                block, size = [], 0
            block += [(passage, h_TD) for passage in self.shared[text.index]]
            size += len(h_TD) * len(self.shared[text.index])
        self._pool(block)

    def _pool(self, block: Sequence[tuple[Encoded, Tensor]]) -> None:
        """Pool the parts of a block of passages with one matrix product for each encoder."""
        states, names, masks = list[Tensor](), list[tuple[int, str]](), list[np.ndarray]()
        for passage, h_TD in block:
            counted = counted_positions(passage, h_TD, self.reading.sinks)
            x_TD = h_TD[torch.from_numpy(counted).to(h_TD.device)].float()
            parts = self._parts_of(passage, counted)
            if not bool(x_TD.isfinite().all()):  # it would spoil its neighbours in the product
                error = CellError(Status.NON_FINITE, "hidden states hold NaN or infinity")
                self.parts |= {(passage.index, part): error for part, _ in parts}
                continue
            states.append(x_TD)
            for part, inside in parts:
                if inside.any():
                    names.append((passage.index, part))
                    masks.append(np.pad(inside, (sum(map(len, states)) - len(inside), 0)))
                else:
                    passage_name = repr(passage.context.passage_id)
                    reason = f"passage {passage_name} has no token that is {part}"
                    self.parts[passage.index, part] = CellError(Status.FAILED, reason)
        if not names:
            return
        x_TD = torch.cat(states)
        mask_PT = torch.zeros(len(names), len(x_TD))
        for row, inside in enumerate(masks):
            mask_PT[row, : len(inside)] = torch.from_numpy(inside).float()
        mask_PT = mask_PT.to(x_TD.device)
        num_P = mask_PT.sum(dim=1)
        sums_PD, squares_P = (mask_PT.double() @ x_TD.double()), mask_PT.double() @ x_TD.double().square().sum(dim=1)
        for name, num, sum_D, squared in zip(
            names, num_P.tolist(), sums_PD.cpu().numpy(), squares_P.tolist(), strict=True
        ):
            self.parts[name] = _Part(int(num), sum_D, squared)
        for role, encoder in self.encoders.items():
            for name, activations in zip(names, pooled(encoder, x_TD, mask_PT, num_P), strict=True):
                self.pooled[(role, *name)] = activations

    def _parts_of(self, passage: Encoded, counted: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """Return the parts of a passage, each as a mask over the positions that count."""
        everything = np.ones(len(counted), dtype=bool)
        ranges = _merged(self.marks[passage.index])
        if not ranges:
            return [(ALL, everything)]
        starts, ends = (np.array(bounds) for bounds in zip(*ranges, strict=True))
        inside = tokens_of_words(passage.context.offsets, starts, ends, np.ones(len(starts), dtype=bool))[counted]
        return [(ALL, everything), (MARKED, inside), (UNMARKED, ~inside)]

    def table(self, role: str) -> pa.Table:
        """Return the FEATURES table of the encoder with this role."""
        whole = [states for (_, part), states in self.parts.items() if part == ALL and isinstance(states, _Part)]
        num = sum(part.num_tokens for part in whole)
        centre_D = np.sum([part.sum_D for part in whole], axis=0) / num if num else None
        rows = []
        for passage in self.encoded:
            parts = [ALL, MARKED, UNMARKED] if self.marks[passage.index] else [ALL]
            rows += [self._row(role, passage, part, centre_D) for part in parts]
        encoder = self.encoders[role]
        metadata = {"num_features": str(encoder.num_features), "autoencoder": encoder.id}
        return table_from_rows(rows, FEATURES).replace_schema_metadata(metadata)

    def _row(self, role: str, passage: Encoded, part: str, centre_D: np.ndarray | None) -> dict[str, object]:
        row: dict[str, object] = {"passage_id": passage.context.passage_id, "part": part}
        states = passage.error or self.parts[passage.index, part]
        if isinstance(states, CellError):
            return row | {"status": states.status, "reason": str(states)}
        features = self.pooled[role, passage.index, part]
        assert centre_D is not None
        about = states.squared - 2 * float(centre_D @ states.sum_D) + states.num_tokens * float(centre_D @ centre_D)
        values = {"num_tokens": states.num_tokens, "squared_norm": max(0.0, about), **features._asdict()}
        return row | values | {"status": Status.OK}


def pooled(encoder: Encoder, x_TD: Tensor, mask_PT: Tensor, num_P: Tensor) -> list[Pooled]:
    """Return the features of P parts, pooled over their tokens.

    Args:
        x_TD: States, float32.
        mask_PT: 1 where a token belongs to a part, else 0.
        num_P: Number of tokens of each part, at least 1.
    """
    values_Td = encoder.encode(x_TD)
    means_Pd = (mask_PT @ values_Td) / num_P[:, None]
    l0_P = (mask_PT @ (values_Td > 0).sum(dim=1).float()) / num_P
    errors: list[float | None] = [None] * len(num_P)
    if encoder.decode is not None:
        errors = (mask_PT.double() @ (x_TD - encoder.decode(values_Td)).double().square().sum(dim=1)).tolist()
    rows, columns = means_Pd.nonzero(as_tuple=True)
    values = means_Pd[rows, columns].cpu().numpy()
    columns_n, ends = columns.cpu().numpy().astype(np.int32), rows.bincount(minlength=len(num_P)).cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    return [
        Pooled(columns_n[start:end], values[start:end], l0, error)
        for start, end, l0, error in zip(starts, ends, l0_P.tolist(), errors, strict=True)
    ]


def _merged(marks: Marks) -> list[tuple[int, int]]:
    """Sort character ranges and merge ranges that overlap. Raise InputError for an empty or negative range."""
    ranges: list[tuple[int, int]] = []
    for start, end in sorted(marks):
        if not 0 <= start < end:
            raise InputError(f"a marked range reaches from {start} to {end}; it must hold a character")
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        else:
            ranges.append((start, end))
    return ranges


def _moved(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
