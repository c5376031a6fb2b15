"""Training of sparse autoencoders, several on the same states.

relu: penalty on the sum of features times the norms of their decoder rows (Bricken et al., 2023). topk: the k largest
features, and a loss that lets dead features predict what the others miss (Gao et al., 2024). jumprelu: thresholds by
straight-through gradients (Rajamanoharan et al., 2024b), with a penalty on the distance of L0 from its target.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence

import torch
from recipes.saes.plans import Plan
from recipes.saes.states import Reader
from torch import Tensor, nn

_BATCH = 1024
_BUFFER = 60_000
_RATE = 1e-3
_WARMUP = 50
#: Steps without activity after which a feature counts as dead.
_DEAD_STEPS = 100
_AUX_K, _AUX_WEIGHT = 64, 1 / 32
_BANDWIDTH = 0.5
_SECONDS = 10.0


class Autoencoder(nn.Module):
    """One autoencoder in training; its inputs have mean squared norm D."""

    def __init__(self, architecture: str, width: int, num_features: int, l0: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        drawn_dD = torch.randn(num_features, width, generator=generator)
        w_dec = drawn_dD / drawn_dD.norm(dim=1, keepdim=True)
        self.architecture, self.l0 = architecture, l0
        self.w_dec = nn.Parameter(w_dec)
        self.w_enc = nn.Parameter(w_dec.T.clone().contiguous())
        self.b_enc = nn.Parameter(torch.zeros(num_features))
        self.b_dec = nn.Parameter(torch.zeros(width))
        self.log_threshold = nn.Parameter(torch.zeros(num_features)) if architecture == "jumprelu" else None
        self.penalty = 0.05
        self.idle: Tensor
        self.register_buffer("idle", torch.zeros(num_features, dtype=torch.long))

    @torch.no_grad()
    def start(self, x_nD: Tensor) -> None:
        """Begin at the mean of a batch, with about as many features per token as are asked for."""
        self.b_dec.copy_(x_nD.mean(dim=0))
        z_nd = self.pre(x_nD[:256])
        if self.log_threshold is not None:
            self.log_threshold.fill_(float(z_nd.flatten().kthvalue(z_nd.numel() - self.l0 * len(z_nd)).values.log()))
        elif self.architecture == "relu":
            self.b_enc.fill_(-float(z_nd.flatten().kthvalue(z_nd.numel() - 3 * self.l0 * len(z_nd)).values))

    def pre(self, x_nD: Tensor) -> Tensor:
        """Return what the activation reads [n, d]."""
        return (x_nD - self.b_dec) @ self.w_enc + self.b_enc

    def features(self, z_nd: Tensor) -> Tensor:
        """Return features [n, d] of `pre`."""
        if self.architecture == "topk":
            # The largest contributions, so that decoder rows of norm 1 in the export change no choice.
            top = (z_nd.relu() * self.w_dec.norm(dim=1)).topk(self.l0, dim=1).indices
            return torch.zeros_like(z_nd).scatter(1, top, z_nd.relu().gather(1, top))
        if self.log_threshold is not None:
            return _Jump.apply(z_nd, self.log_threshold.exp())
        return z_nd.relu()

    def loss(self, x_nD: Tensor) -> Tensor:
        """Return the loss of a batch; also count idle features and move the penalty of relu towards its target."""
        z_nd = self.pre(x_nD)
        f_nd = self.features(z_nd)
        error_nD = x_nD - f_nd @ self.w_dec - self.b_dec
        loss = error_nD.square().sum(dim=1).mean() / x_nD.shape[1]
        with torch.no_grad():
            active_nd = f_nd > 0
            self.idle = torch.where(active_nd.any(dim=0), 0, self.idle + 1)
            reached = float(active_nd.sum(dim=1).float().mean())
        if self.log_threshold is not None:
            l0 = _Step.apply(z_nd, self.log_threshold.exp()).sum(dim=1).mean()
            loss = loss + (l0 / self.l0 - 1).square() * 0.3
        elif self.architecture == "relu":
            self.penalty *= min(1.01, max(0.99, (reached / self.l0) ** 0.02))
            loss = loss + self.penalty * (f_nd * self.w_dec.norm(dim=1)).sum(dim=1).mean() / x_nD.shape[1] ** 0.5
        dead = (self.idle > _DEAD_STEPS).nonzero().flatten()
        if self.architecture != "relu" and len(dead):
            top = z_nd[:, dead].relu().topk(min(_AUX_K, len(dead)), dim=1)
            tried = torch.zeros_like(z_nd[:, dead]).scatter(1, top.indices, top.values) @ self.w_dec[dead]
            missed = error_nD.detach()
            loss = loss + _AUX_WEIGHT * (missed - tried).square().sum() / missed.square().sum()
        return loss

    @torch.no_grad()
    def exported(self, scale: float) -> dict[str, Tensor]:
        """Return the tensors of an autoencoder that reads states as they are; `scale` times states is what this reads.

        Decoder rows get norm 1, which moves no reconstruction.
        """
        norms_d = self.w_dec.norm(dim=1)
        tensors = {
            "W_enc": self.w_enc * norms_d,
            "b_enc": (self.b_enc * norms_d) / scale,
            "W_dec": self.w_dec / norms_d[:, None],
            "b_dec": self.b_dec / scale,
        }
        if self.log_threshold is not None:
            tensors["threshold"] = self.log_threshold.exp() * norms_d / scale
        return tensors


class _Jump(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z_nd, threshold_d):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(z_nd, threshold_d)
        return z_nd * (z_nd > threshold_d)

    @staticmethod
    def backward(ctx, grad_nd):  # type: ignore[no-untyped-def]
        z_nd, threshold_d = ctx.saved_tensors
        near_nd = ((z_nd - threshold_d).abs() < _BANDWIDTH / 2) * (-threshold_d / _BANDWIDTH)
        return grad_nd * (z_nd > threshold_d), (grad_nd * near_nd).sum(dim=0)


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z_nd, threshold_d):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(z_nd, threshold_d)
        return (z_nd > threshold_d).to(z_nd.dtype)

    @staticmethod
    def backward(ctx, grad_nd):  # type: ignore[no-untyped-def]
        z_nd, threshold_d = ctx.saved_tensors
        near_nd = ((z_nd - threshold_d).abs() < _BANDWIDTH / 2) * (-1 / _BANDWIDTH)
        return None, (grad_nd * near_nd).sum(dim=0)


def train(
    reader: Reader, texts: Sequence[str], plan: Plan, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[dict[str, Autoencoder], float]:
    """Return the autoencoders of a plan by name, and the factor that their inputs were scaled by.

    Products are computed in `dtype`; weights, activations and sums stay in float32.
    """
    models = {
        f"{architecture}-{width}": Autoencoder(architecture, reader.width, width, plan.l0, seed)
        for architecture in plan.architectures
        for width in plan.widths
    }
    optimizers = {
        name: torch.optim.Adam(model.parameters(), lr=_RATE, betas=(0.9, 0.999)) for name, model in models.items()
    }
    scale, began, reported_at = 0.0, time.monotonic(), 0.0
    total = plan.num_tokens // _BATCH
    for step, x_nD in enumerate(_batches(reader.states(texts), plan.num_tokens, seed), 1):
        if not scale:
            scale = (reader.width / float(x_nD.square().sum(dim=1).mean())) ** 0.5
            for model in models.values():
                model.to(x_nD.device).start(scale * x_nD)
        rate = _RATE * min(1.0, step / _WARMUP, 5 * (1 - (step - 1) / max(total, step)))
        losses = {}
        for name, model in models.items():
            optimizers[name].param_groups[0]["lr"] = rate
            with torch.autocast(x_nD.device.type, dtype, enabled=dtype != torch.float32):
                loss = model.loss(scale * x_nD)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizers[name].step()
            optimizers[name].zero_grad(set_to_none=True)
            losses[name] = float(loss.detach())
        if time.monotonic() - reported_at > _SECONDS:
            reported_at = time.monotonic()
            report = " ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
            print(f"{reported_at - began:5.0f} s  {step} of {total}: {report}", file=sys.stderr, flush=True)
    return models, scale


def _batches(states: Iterable[Tensor], num_tokens: int, seed: int) -> Iterator[Tensor]:
    """Yield batches of states in random order out of a buffer, so that a batch holds tokens of many texts."""
    generator, held, size, num_given = torch.Generator().manual_seed(seed), list[Tensor](), 0, 0
    for x_nD in states:
        held.append(x_nD)
        size += len(x_nD)
        if size < _BUFFER:
            continue
        pool_nD = torch.cat(held)[torch.randperm(size, generator=generator)]
        half = len(pool_nD) // 2 // _BATCH * _BATCH
        for batch_nD in pool_nD[:half].split(_BATCH):
            yield batch_nD
            num_given += len(batch_nD)
            if num_given >= num_tokens:
                return
        held, size = [pool_nD[half:].clone()], len(pool_nD) - half
    pool_nD = torch.cat(held)[torch.randperm(size, generator=generator)]
    for batch_nD in pool_nD[: len(pool_nD) // _BATCH * _BATCH].split(_BATCH):
        yield batch_nD
