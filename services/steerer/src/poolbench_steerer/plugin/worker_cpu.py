"""The steering worker on CPUs."""

from vllm.v1.worker.cpu_worker import CPUWorker

from poolbench_steerer.plugin.worker import SteeringWorkerMixin


class SteeringCPUWorker(SteeringWorkerMixin, CPUWorker):
    """vLLM's CPU worker with steering."""
