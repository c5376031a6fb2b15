"""The steering worker on GPUs."""

from vllm.v1.worker.gpu_worker import Worker

from poolbench_steerer.plugin.worker import SteeringWorkerMixin


class SteeringGPUWorker(SteeringWorkerMixin, Worker):
    """vLLM's GPU worker with steering."""
