"""The options of each service in Serve: replicas, GPUs, and what decides their number."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.local.apps import options
from deploy.local.state import REPOSITORY
from pydantic import ValidationError

from poolbench.contracts.wire import SERVICES
from poolbench.errors import ConfigError
from poolbench.queue.broker import Broker
from poolbench.runtime.serve import SPARE_REQUESTS, AppOptions, app, build_app


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A folder broker that the environment names."""
    monkeypatch.setenv("POOLBENCH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("POOLBENCH_BROKER", f"filesystem://{tmp_path / 'queue'}")
    monkeypatch.delenv("POOLBENCH_STEERER_GPU_MEMORY_SHARE", raising=False)
    return Broker(f"filesystem://{tmp_path / 'queue'}")


def deployment(**given: Any) -> Any:
    """The deployment of an application, as Serve gets it."""
    return build_app(**given)._bound_deployment


def test_a_fixed_number_of_replicas_is_the_default(broker):
    made = deployment(service="steerer")
    config = made._deployment_config
    assert (config.num_replicas, config.autoscaling_config) == (1, None)
    assert (config.max_ongoing_requests, config.max_queued_requests) == (16 + 1000 + SPARE_REQUESTS, 1000)
    assert made.ray_actor_options["resources"] == {"steerer": 1}
    assert "runtime_env" not in made.ray_actor_options


def test_replicas_follow_the_queue(broker):
    config = deployment(service="steerer", num_replicas=2, max_replicas=8, num_gpus=1)._deployment_config
    scaling = config.autoscaling_config
    assert (scaling.min_replicas, scaling.initial_replicas, scaling.max_replicas) == (2, 2, 8)
    assert scaling.policy.policy_kwargs == {
        "service": "steerer", "tasks_per_replica": 1.0, "requests_per_replica": 8.0, "idle_s": 300.0,
    }  # fmt: skip
    assert "queue" not in str(scaling.policy.policy_kwargs).lower()  # no address, so no password
    assert config.graceful_shutdown_timeout_s > 600  # a replica that is ended finishes its task


@pytest.mark.parametrize("service", [name for name in SERVICES if name != "steerer"])
def test_a_service_may_end_its_last_replica(broker, service):
    scaling = deployment(service=service, num_replicas=0, max_replicas=1)._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.initial_replicas, scaling.max_replicas) == (0, 1, 1)


@pytest.mark.parametrize("service", ["extractor", "scorer", "steerer"])
def test_replicas_on_one_gpu_know_that_they_share_it(broker, service):
    actor = deployment(service=service, num_gpus=0.3).ray_actor_options
    assert actor["num_gpus"] == 0.3
    assert actor["runtime_env"] == {"env_vars": {"POOLBENCH_SHARED_GPU": "1"}}
    assert "runtime_env" not in deployment(service=service, num_gpus=1).ray_actor_options


def test_a_model_over_several_gpus(broker):
    actor = deployment(service="steerer", num_gpus=4, tensor_parallel=4).ray_actor_options
    assert actor["num_gpus"] == 4
    assert actor["runtime_env"] == {"env_vars": {"POOLBENCH_STEERER_TENSOR_PARALLEL": "4"}}


def test_serve_builds_the_applications_of_its_file(broker):
    """By Serve's own function, which converts the arguments by the annotation of `app`."""
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as build

    config = yaml.safe_load((REPOSITORY / "deploy" / "serve.yaml").read_text("utf-8"))
    for application in config["applications"]:
        assert application["import_path"] == "poolbench.runtime.serve:app"
        assert build(app, application["args"])._bound_deployment.name == application["name"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_replicas": 3, "max_replicas": 2}, "below num_replicas"),
        ({"num_replicas": 0, "max_replicas": 2}, "not for the steerer"),
        ({"num_replicas": 0, "service": "scorer"}, "needs max_replicas"),
        ({"tensor_parallel": 2, "num_gpus": 1}, "with num_gpus 2"),
        ({"tensor_parallel": 2, "num_gpus": 2, "service": "extractor"}, "for the steerer"),
        ({"num_gpus": 1.5}, "neither a share"),
        ({"colour": "red"}, "Extra inputs"),
    ],
)
def test_options_that_contradict_themselves(given, message):
    with pytest.raises(ValidationError, match=message):
        AppOptions.model_validate({"service": "steerer"} | given)


@pytest.mark.parametrize(
    ("num_gpus", "steerer"),
    [
        (0, {}),
        (1, {"num_gpus": 0.3}),
        (2, {"num_gpus": 1.0}),
        (3, {"num_gpus": 1.0}),
        (8, {"num_gpus": 1.0, "max_replicas": 6}),
    ],
)
def test_the_local_cluster_gives_steerers_what_is_left(num_gpus, steerer, monkeypatch):
    monkeypatch.delenv("POOLBENCH_STEERER_TENSOR_PARALLEL", raising=False)
    chosen = options(num_gpus)["steerer"]
    assert chosen.pop("max_ongoing_requests") > 4096
    assert chosen == steerer


def test_split_models_take_whole_groups(monkeypatch):
    monkeypatch.setenv("POOLBENCH_STEERER_TENSOR_PARALLEL", "2")
    assert options(8)["steerer"] | {"max_ongoing_requests": 0} == {
        "num_gpus": 2, "tensor_parallel": 2, "max_replicas": 3, "max_ongoing_requests": 0,
    }  # fmt: skip
    assert "max_replicas" not in options(4)["steerer"]
    with pytest.raises(ConfigError, match="of 2 GPUs that Ray sees 1 are left"):
        options(2)


def test_replicas_from_the_environment(monkeypatch):
    monkeypatch.setenv("POOLBENCH_REPLICAS_EXTRACTOR", "0-2")
    monkeypatch.setenv("POOLBENCH_REPLICAS_PROBER", "3")
    monkeypatch.setenv("POOLBENCH_REPLICAS_STEERER", "2-4")
    monkeypatch.setenv("POOLBENCH_REPLICA_IDLE_S", "60")
    chosen = options(8)
    assert chosen["extractor"] == {"num_gpus": 1.0, "num_replicas": 0, "max_replicas": 2, "idle_s": 60.0}
    assert chosen["prober"] == {"num_replicas": 3, "max_replicas": 3, "idle_s": 60.0}
    assert (chosen["steerer"]["num_replicas"], chosen["steerer"]["max_replicas"]) == (2, 4)
    for service, own in chosen.items():
        AppOptions.model_validate({"service": service} | own)


@pytest.mark.parametrize(
    ("service", "asked"), [("prober", "0"), ("prober", "3-2"), ("steerer", "0-2"), ("prober", "x"), ("prober", "-1")]
)
def test_numbers_of_replicas_that_are_none(service, asked, monkeypatch):
    monkeypatch.setenv(f"POOLBENCH_REPLICAS_{service.upper()}", asked)
    with pytest.raises(ConfigError, match=f"POOLBENCH_REPLICAS_{service.upper()} is"):
        options(0)
