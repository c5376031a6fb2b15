"""Services as Ray Serve applications: one deployment that answers HTTP and consumes the queue.

Ray is imported when an application is built, so that a driver may import `poolbench.runtime` without it.
"""

# Without postponed annotations: Serve reads the class of `app`'s parameter to convert the arguments of a configuration.
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from poolbench.contracts.wire import SERVICES
from poolbench.errors import UnknownNameError
from poolbench.queue.messages import MAX_RETRIES, TASK_NAME, failed_queue_name, queue_name
from poolbench.settings import MemorySettings, SteererSettings
from poolbench.telemetry.logs import serve_logging

if TYPE_CHECKING:
    from ray.serve import Application


SPARE_REQUESTS = 64  # health checks, and refusals
SHUTDOWN_S = 10.0  # for a replica that ends, beside the time of its task


class AppOptions(BaseModel):
    """Deployment of one service; the `args` of its entry in a Serve configuration.

    Attributes:
        module: Module whose `create()` makes the service; by default `poolbench_<service>.service`.
        num_replicas: Replicas, each with its own model; the smallest number if there may be more. 0, not for the
            steerer, lets the service end without work and start again with the first task or request.
        max_replicas: If greater than `num_replicas`, Serve starts as many as the work asks for: tasks that wait or are
            in work over `work_per_replica`, and HTTP requests in progress over half of `max_ongoing_requests`.
        work_per_replica: Tasks that one replica is meant to have, in work or waiting. The driver keeps as many waiting
            as are in work, so that 1 lets the number of replicas double until it suffices.
        idle_s: Seconds without need before a replica is ended.
        finish_s: Seconds that a replica which is ended may take to finish its task, if `max_replicas` is set.
        tasks_at_once: Queue tasks at once in a replica.
        max_ongoing_requests: HTTP requests at once in a replica.
        max_queued_requests: HTTP requests that wait in a replica beyond those; more are refused with 429.
        num_cpus: Logical CPU slots of a replica.
        num_gpus: GPUs of a replica, or the share of one; whole ones under tensor parallelism.
        tensor_parallel: GPUs over which the steerer's model is split.
        place_by_resource: Ask for one unit of the Ray resource named as the service, so that nodes choose
            which services they run.
    """

    model_config = ConfigDict(extra="forbid")

    service: str
    module: str = ""
    num_replicas: int = Field(1, ge=0)
    max_replicas: int | None = Field(None, ge=1)
    work_per_replica: float = Field(1, gt=0)
    idle_s: float = Field(300, gt=0)
    finish_s: float = Field(600, ge=10)
    tasks_at_once: int = Field(1, ge=1)
    max_ongoing_requests: int = Field(16, ge=1)
    max_queued_requests: int = Field(1000, ge=0)
    num_cpus: float = Field(0, ge=0)
    num_gpus: float = Field(0, ge=0)
    tensor_parallel: int = Field(1, ge=1)
    place_by_resource: bool = True

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_replicas is not None and self.max_replicas < self.num_replicas:
            raise ValueError(f"max_replicas {self.max_replicas} is below num_replicas {self.num_replicas}")
        if self.num_replicas == 0 and (self.max_replicas is None or self.service == "steerer"):
            raise ValueError(
                "num_replicas 0 needs max_replicas, and is not for the steerer, whose replicas hold the vectors that "
                "clients registered; use 1 or more"
            )
        if self.tensor_parallel > 1 and (self.service, self.num_gpus) != ("steerer", self.tensor_parallel):
            raise ValueError(
                f"tensor_parallel {self.tensor_parallel} is for the steerer, with num_gpus {self.tensor_parallel}; "
                f"got {self.service} with num_gpus {self.num_gpus:g}"
            )
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise ValueError(f"num_gpus {self.num_gpus:g} is neither a share of one GPU nor a whole number")
        return self

    @property
    def scales(self) -> bool:
        """Return whether the number of replicas follows the work."""
        return self.max_replicas not in (None, self.num_replicas)


def app(options: AppOptions) -> "Application":
    """Build a service's application, `poolbench.runtime.serve:app` in Serve's configuration. Raise UnknownNameError."""
    if options.service not in SERVICES:
        raise UnknownNameError("service", options.service, SERVICES)
    from ray import serve
    from ray.serve.schema import TaskProcessorConfig
    from ray.serve.task_consumer import task_consumer, task_handler

    from poolbench.machine.memory import limit_replica
    from poolbench.machine.sharing import folders_here
    from poolbench.runtime.replica import Replica

    num_replicas = max(options.num_replicas, options.max_replicas or 1)

    class ConsumingReplica(Replica):
        """A replica with a queue handler. Ray's decorator looks for handlers on the class itself."""

        num_running = options.max_ongoing_requests
        num_waiting = options.max_queued_requests

        def __init__(self, service: str, module: str = "", folders: dict[str, str] | None = None) -> None:
            limit_replica(service, num_replicas)
            super().__init__(service, module, folders)

        run_task = task_handler(name=TASK_NAME)(Replica.run_task)

    config = TaskProcessorConfig(
        queue_name=queue_name(options.service),
        adapter="poolbench.worker.consumer.QueueConsumer",
        adapter_config={
            "service": options.service,
            "tasks_at_once": options.tasks_at_once,
            "chooses": (options.max_replicas or options.num_replicas) > 1,  # tasks that others have the model for
            "finish_s": options.finish_s if options.scales else SHUTDOWN_S,
        },
        max_retries=MAX_RETRIES,
        failed_task_queue_name=failed_queue_name(options.service),
    )
    actor: dict[str, Any] = {"num_cpus": options.num_cpus, "num_gpus": options.num_gpus}
    if options.place_by_resource:
        actor["resources"] = {options.service: 1}
    if variables := _variables(options):
        actor["runtime_env"] = {"env_vars": variables}
    configure = serve.deployment(
        name=options.service,
        **_scale(options),
        # The replica's border limits and queues the verbs. Serve's own limit must never be reached, because `/health`
        # would wait behind it too.
        max_ongoing_requests=options.max_ongoing_requests + options.max_queued_requests + SPARE_REQUESTS,
        max_queued_requests=options.max_queued_requests,
        ray_actor_options=actor,
        health_check_period_s=5,
        health_check_timeout_s=60,
        graceful_shutdown_timeout_s=SHUTDOWN_S + (options.finish_s if options.scales else 0),
        logging_config=serve_logging(),
    )
    deployment = configure(serve.ingress()(task_consumer(task_processor_config=config)(ConsumingReplica)))
    return deployment.bind(options.service, options.module, folders_here())


def build_app(service: str, **options: Any) -> "Application":
    """Build the application of `service`. Keyword arguments are fields of `AppOptions`."""
    return app(AppOptions(service=service, **options))


def web_app(builder: str, name: str) -> "Application":
    """Build an application that serves HTTP but runs no tasks, such as the console.

    Args:
        builder: Name `module:function` of a function that returns an ASGI application. It is a name, because this
            package imports none of these modules.
        name: Name of the application among the deployments, and in logs.
    """
    from ray import serve

    from poolbench.runtime.replica import keep_on_loopback
    from poolbench.telemetry.logs import configure_logging

    def build() -> Any:
        configure_logging(name)
        keep_on_loopback()
        module, _, function = builder.partition(":")
        return getattr(import_module(module), function)()

    configure = serve.deployment(
        name=name,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=SPARE_REQUESTS,
        logging_config=serve_logging(),
    )
    return configure(serve.ingress(build)()).bind()  # type: ignore[attr-defined, no-any-return]


def _scale(options: AppOptions) -> dict[str, Any]:
    """Return a fixed number of replicas, or limits and the policy between them."""
    if not options.scales:
        return {"num_replicas": options.num_replicas}
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    requests_per_replica = max(1.0, options.max_ongoing_requests / 2)
    policy = AutoscalingPolicy(
        policy_function="poolbench.runtime.scaling:QueueLengthPolicy",
        policy_kwargs={
            "service": options.service,
            "tasks_per_replica": options.work_per_replica,
            "requests_per_replica": requests_per_replica,
            "idle_s": options.idle_s,
        },
    )
    scaling = AutoscalingConfig(
        min_replicas=options.num_replicas,
        initial_replicas=max(1, options.num_replicas),  # so that a service that cannot start fails at once
        max_replicas=options.max_replicas or 1,
        target_ongoing_requests=requests_per_replica,
        look_back_period_s=15,  # of requests and tasks in work, which are means over this time
        upscale_delay_s=5,
        downscale_delay_s=0,  # the policy has its own
        policy=policy,
    )
    return {"autoscaling_config": scaling}


def _variables(options: AppOptions) -> dict[str, str]:
    """Return the environment variables of a replica's share of the GPUs, because Ray does not bound their memory."""
    variables = {}
    if options.tensor_parallel > 1:
        variables[SteererSettings.variable("tensor_parallel")] = str(options.tensor_parallel)
    if 0 < options.num_gpus < 1:
        variables[MemorySettings.variable("shared_gpu")] = "1"
    return variables
