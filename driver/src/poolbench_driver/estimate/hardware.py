"""Figures of hardware that the model of FLOPs and bandwidth uses, each with its source.

Peak figures are those of the manufacturers' data sheets. Utilisations were measured on one H100 with the shape of
Llama-3.1-8B (docs/results/gpu.md), which has 6.44e9 parameters by the formula of `decoder_parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poolbench.errors import UnknownNameError

#: The services that use a GPU where there is one.
GPU_SERVICES = ("extractor", "scorer", "steerer")


@dataclass(frozen=True)
class Gpu:
    """A GPU and its peak figures."""

    id: str
    flops: float  # bfloat16 operations per second, dense
    bandwidth: float  # of its memory, in bytes per second
    name: str


GPUS: Mapping[str, Gpu] = {
    gpu.id: gpu
    for gpu in (
        Gpu("a100", 312e12, 2.039e12, "NVIDIA A100 80GB SXM"),
        Gpu("b200", 2250e12, 8.0e12, "NVIDIA B200"),
        Gpu("h100", 989e12, 3.35e12, "NVIDIA H100 80GB SXM"),
        Gpu("h200", 989e12, 4.8e12, "NVIDIA H200 141GB SXM"),
        Gpu("l40s", 362e12, 0.864e12, "NVIDIA L40S"),
    )
}


def get_gpu(name: str) -> Gpu:
    """Return a GPU by its id. Raise UnknownNameError with the known ones."""
    if name not in GPUS:
        raise UnknownNameError("GPU", name, GPUS)
    return GPUS[name]


#: Share of the peak that a forward pass over whole texts reaches: 35,000 tokens per second.
PREFILL_SHARE = 0.45
#: Share of the peak that the steerer reaches where it computes likelihoods: 26,000 tokens per second.
LIKELIHOOD_SHARE = 0.34
#: Time of an extraction over that of the plain forward pass, without and with strategies that need gradients.
EXTRACTION_OVERHEAD, GRADIENT_OVERHEAD = 1.46, 2.75
#: Requests in one batch of the engine.
ENGINE_BATCH = 256
#: Time of the host in one decoding step: 18.7 ms were measured, of which reading the weights takes 3.85 ms.
DECODING_HOST_S = 0.0148
#: Start of an engine, measured once: 139 s, most of it compilation and graph capture.
ENGINE_START_S = 139.0
#: Bytes per second at which weights are read when a model is loaded (assumed: local NVMe or a page cache).
LOADING_BYTES_PER_S = 1e9

#: Share of the peak that encoders of scorers reach (assumed: their matrices are small).
ENCODER_SHARE = 0.1
#: Time of one training step of a scorer, which the host bounds (assumed), by mode.
TRAINING_STEP_S = {"full": 0.04, "head": 0.006}
#: Time of one batch of 2,048 tokens in the encoder, which the host bounds (assumed).
SCORING_BATCH_S = 0.01
#: Parameters of the encoder blocks of scorer bases.
ENCODER_PARAMETERS: Mapping[str, float] = {"minilm": 10.6e6, "bert-base-uncased": 85e6}

#: Tokens per second of the shipped spaCy pipeline on one core with AVX2 (services/pooler/README.md).
ANNOTATED_TOKENS_PER_S = 7_500.0
#: Operations per second of a prober on two cores with AVX2: 120 probes on 1,400 x 4,096 numbers took 2.1 s
#: (`make bench-probe`), counted as `PROBER_ITERATIONS` products with the inner products of the rows for each probe.
PROBER_FLOPS, PROBER_ITERATIONS = 53e9, 200
#: Probes that are fitted together: labelings x values of C; and how often: folds, held-out domains, all train rows.
PROBES_AT_ONCE, PROBER_FITS = 24, 9
#: Seconds per cell for directions, metrics, bootstraps and tables: 1,000 resamples of a demo cell took .4 s in all.
CELL_S = 0.4
#: Numbers per second that a preference shift reads: 7 states of 2,094 x 2,048 took .7 s by two readings, on two cores.
SHIFT_NUMBERS_PER_S = 5e7
#: Texts per second whose features are contrasted: 10,000 texts under 65,536 features took 7 s of one core.
CONTRASTED_TEXTS_PER_S = 1_500
