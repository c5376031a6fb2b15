"""Which services run on which device."""

from collections.abc import Mapping, Sequence

from poolbench.contracts.wire import SERVICES
from poolbench_driver.estimate.estimate import GPU_SERVICES

#: The services of each device: a GPU, or processors for one replica.
Layout = Sequence[tuple[str, ...]]
#: Probers, of two cores each, for one GPU; and one pooler.
PROBERS = 4


def shipped_layout(gpus: int, _: Mapping[str, float]) -> Layout:
    """Return the replicas that the overlays deploy: one per service, and steerers on all other GPUs."""
    cpu = [(name,) for name in SERVICES if name not in GPU_SERVICES]
    if gpus < 3:
        return [*cpu, *([GPU_SERVICES] * gpus)]
    return [*cpu, ("extractor",), ("scorer",), *([("steerer",)] * (gpus - 2))]


def shared_layout(gpus: int, _: Mapping[str, float]) -> Layout:
    """Return GPUs that extractor, scorer and steerer share, and for each of them places without GPU."""
    cpu = [("pooler",), *([("prober",)] * PROBERS)]
    return [*(cpu * gpus), *([GPU_SERVICES] * gpus)]


def split_layout(gpus: int, work_s: Mapping[str, float]) -> Layout:
    """Return GPUs divided between the services in proportion to their work, and as many poolers and probers."""
    if gpus < len(GPU_SERVICES):
        return shared_layout(gpus, work_s)
    total_s = sum(work_s[name] for name in GPU_SERVICES)
    counts = {name: max(1, int(gpus * work_s[name] / total_s)) for name in GPU_SERVICES}
    while sum(counts.values()) != gpus:  # the rest goes where most work is left per GPU, or is taken where least is
        step = 1 if sum(counts.values()) < gpus else -1
        movable = [name for name in GPU_SERVICES if counts[name] + step > 0]
        service = max(movable, key=lambda name: step * work_s[name] / counts[name])
        counts[service] += step
    cpu = [("pooler",), *([("prober",)] * PROBERS)]
    return [*(cpu * gpus), *((name,) for name in GPU_SERVICES for _ in range(counts[name]))]
