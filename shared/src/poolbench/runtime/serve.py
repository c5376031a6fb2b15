"""Services as Ray Serve applications: one deployment that answers HTTP and consumes the queue.

Ray is imported when an application is built, so that a driver may import `poolbench.runtime` without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from poolbench.errors import UnknownNameError
from poolbench.queue.broker import MAX_RETRIES, TASK_NAME, failed_queue_name, queue_name
from poolbench.runtime.service import SERVICES

if TYPE_CHECKING:
    from ray.serve import Application


class AppOptions(BaseModel):
    """How one service is deployed; the `args` of its entry in a Serve configuration.

    Attributes:
        service: which service.
        module: module whose `create()` makes it; by default `poolbench_<service>.service`.
        num_replicas: replicas, each with its own model.
        tasks_at_once: queue tasks at once in a replica.
        max_ongoing_requests: HTTP requests at once in a replica.
        num_cpus: logical CPU slots that a replica takes.
        num_gpus: GPUs that a replica takes.
        place_by_resource: ask for one unit of the Ray resource named as the service, so that nodes choose
            which services they run.
    """

    model_config = ConfigDict(extra="forbid")

    service: str
    module: str = ""
    num_replicas: int = Field(1, ge=1)
    tasks_at_once: int = Field(1, ge=1)
    max_ongoing_requests: int = Field(16, ge=1)
    num_cpus: float = Field(0, ge=0)
    num_gpus: float = Field(0, ge=0)
    place_by_resource: bool = True


def app(options: AppOptions) -> Application:
    """Builds a service's application; a Serve configuration names it `poolbench.runtime.serve:app`.

    Raises:
        UnknownNameError: no service has this name.
    """
    if options.service not in SERVICES:
        raise UnknownNameError("service", options.service, SERVICES)
    from ray import serve
    from ray.serve.schema import TaskProcessorConfig
    from ray.serve.task_consumer import task_consumer, task_handler

    from poolbench.runtime.replica import Replica

    class ConsumingReplica(Replica):
        """A replica with its queue handler; the decorator looks for handlers on the class itself."""

        run_task = task_handler(name=TASK_NAME)(Replica.run_task)

    config = TaskProcessorConfig(
        queue_name=queue_name(options.service),
        adapter="poolbench.runtime.consumer.QueueConsumer",
        adapter_config={"service": options.service, "tasks_at_once": options.tasks_at_once},
        max_retries=MAX_RETRIES,
        failed_task_queue_name=failed_queue_name(options.service),
    )
    configure = serve.deployment(
        name=options.service,
        num_replicas=options.num_replicas,
        max_ongoing_requests=options.max_ongoing_requests,
        ray_actor_options=_actor_options(options),
        health_check_period_s=5,
        health_check_timeout_s=60,
        graceful_shutdown_timeout_s=10,
    )
    deployment = configure(serve.ingress()(task_consumer(task_processor_config=config)(ConsumingReplica)))
    return deployment.bind(options.service, options.module)


def build_app(service: str, **options: Any) -> Application:
    """The application of `service`; keyword arguments are fields of `AppOptions`."""
    return app(AppOptions(service=service, **options))


def _actor_options(options: AppOptions) -> dict[str, Any]:
    actor: dict[str, Any] = {"num_cpus": options.num_cpus, "num_gpus": options.num_gpus}
    if options.place_by_resource:
        actor["resources"] = {options.service: 1}
    return actor
