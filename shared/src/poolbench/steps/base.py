"""The contract of a step: kind, version, parameters, roles, work, and key and size of each output."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field, ValidationError

from poolbench.config.base import StrictModel
from poolbench.config.models import ModelRef, resolve_model
from poolbench.contracts.bounds import SINK_RATIO, Dtype, Flag, ModelName, Name, Revision, SinkRatio, StrategyParams
from poolbench.contracts.keys import derive_key
from poolbench.contracts.tasks import Task
from poolbench.contracts.work import Shape, ShapeRule, Shapes, Sized, Work, WorkRule, one_row
from poolbench.errors import ConfigError, PoolbenchError, UnknownNameError, shown
from poolbench.pooling.sinks import SinkRule
from poolbench.steps.roles import Role

Params = TypeVar("Params", bound=StrictModel)
Keys = Mapping[str, str]
#: Parameters, by name, that enter the key of the output at an address.
KeyParams = Callable[[Any, Any], Mapping[str, Any]]
#: Inputs, by the role under which they enter the key of the output at an address.
KeyInputs = Callable[[Any, Any, Keys], Keys]
MAX_STRATEGIES = 200
"""Strategies of one task or request."""


def given(params: StrictModel, *unread: str) -> dict[str, Any]:
    """Return the parameters that were set, as JSON, without the parameters `unread`.

    Defaults do not enter keys, so a new parameter changes no existing key.
    """
    return params.model_dump(mode="json", exclude_unset=True, exclude=set(unread))


def params_without(*unread: str) -> KeyParams:
    """Return the rule of an output that depends on all parameters but these."""
    return lambda params, _: given(params, *unread)


def part_params(part: str, *unread: str) -> KeyParams:
    """Return a rule that adds the name of a part to the parameters, for a step that makes several artifacts per run."""
    return lambda params, _: {**given(params, *unread), "part": part}


_ALL_PARAMS = params_without()


def all_inputs(_: Any, __: Any, inputs: Keys) -> Keys:
    """Return all inputs of the task: the usual rule of a key."""
    return inputs


@dataclass(frozen=True)
class Output:
    """An output of a step, or a family of outputs."""

    role: Role[Any]  # its roles
    params: KeyParams = _ALL_PARAMS  # which parameters enter its key
    inputs: KeyInputs = all_inputs  # which inputs enter its key, and under which role
    kind: str = ""  # name of the derivation, if it is not the kind of the step
    version: int = 0  # version of the derivation, if it has a name of its own
    shape: ShapeRule = one_row  # its expected size


@dataclass(frozen=True)
class Step(Generic[Params]):
    """A step of the pipeline. The driver plans its tasks and keys from it; the service reads its tasks by it."""

    kind: str  # `<service>.<verb>`
    version: int  # raised with the meaning or a default; moves the keys of all that depends on it
    params: type[Params]  # model of the parameters
    inputs: tuple[Role[Any], ...]  # roles that a task may read
    outputs: tuple[Output, ...]  # roles that a task may write
    summary: str  # one line for the documentation
    keyed_by: str = ""  # kind of another step that makes the same artifacts under the same keys
    label: str = ""  # its name in progress and estimates; those of the driver itself have none
    unit: str = ""  # what its work is counted in
    work: WorkRule | None = None  # amount and variant of its work; None: its time is proportional to nothing known

    @property
    def service(self) -> str:
        """Return the service that executes the step. `corpus` and `import` are steps of the driver itself."""
        return self.kind.partition(".")[0]

    def key(self, role: str, params: Params, inputs: Keys, *, restricted: bool = False) -> str:
        """Return the key of the output `role` of a task. Inputs that the output does not depend on are left out.

        `restricted` marks an artifact of a sensitive concept. If an input is restricted, the artifact is restricted
        too.
        """
        output, address = self._output(role)
        return derive_key(
            output.kind or self.kind,
            output.version or self.version,
            output.params(params, address),
            output.inputs(params, address, inputs),
            restricted=restricted,
        )

    def task(self, params: Params, inputs: Keys, outputs: Iterable[str] | Keys) -> Task:
        """Return a task with the parameters that were set. `outputs` are roles, or keys by role."""
        keys = outputs if isinstance(outputs, Mapping) else {role: self.key(role, params, inputs) for role in outputs}
        return Task(kind=self.kind, inputs=dict(inputs), outputs=dict(keys), params=given(params))

    def work_of(self, task: Task, inputs: Shapes) -> Work | None:
        """Return the work of a task, or None if the step has no rule or the rule needs an unknown size."""
        if self.work is None:
            return None
        try:
            amount, variant = self.work(self.sized(task, inputs))
        except (LookupError, TypeError, ValueError, PoolbenchError):  # a task of other roles than ours
            return None
        return Work(amount, self.unit, variant)

    def sized(self, task: Task, inputs: Shapes, width: int = 0, passage_tokens: float = 0.0) -> Sized:
        """Return a task with its parameters and the sizes of its inputs. Raise ConfigError as `parse` does."""
        return Sized(task, self.parse(task.params), inputs, width, passage_tokens)

    def shapes_of(self, sized: Sized) -> dict[str, Shape]:
        """Return the expected size of each output by role. If the size of an input is unknown, the sizes are empty."""
        output_by_role = {role: self._output(role) for role in sized.task.outputs}
        try:
            return {role: output.shape(sized, address) for role, (output, address) in output_by_role.items()}
        except KeyError:
            return dict.fromkeys(output_by_role, Shape())

    def params_of(self, task: Task) -> Params:
        """Check the parameters and roles of a task, and return its parameters.

        Raise ConfigError for unknown or wrong parameters and roles. The message says what is allowed.
        """
        self._require_known("input", task.inputs, self.inputs)
        self._require_known("output", task.outputs, [output.role for output in self.outputs])
        return self.parse(task.params)

    def parse(self, values: Mapping[str, Any]) -> Params:
        """Parse the parameters.

        Raise ConfigError if parameters are unknown or wrong. The message lists the known parameters.
        """
        try:
            return self.params.model_validate(dict(values))
        except ValidationError as error:
            issues = [f"{'.'.join(map(str, issue['loc'])) or 'params'}: {issue['msg']}" for issue in error.errors()]
            names = ", ".join(self.params.model_fields) or "none"
            raise ConfigError(f"parameters of {self.kind}: {'; '.join(issues)}; known parameters: {names}") from None

    def _output(self, role: str) -> tuple[Output, Any]:
        for output in self.outputs:
            address = output.role.parse(role)
            if address is not None:
                return output, address
        raise self._unknown_role("output", role, [output.role for output in self.outputs])

    def _require_known(self, side: str, roles: Iterable[str], known: Iterable[Role[Any]]) -> None:
        families = list(known)
        for role in roles:
            if not any(family.parse(role) is not None for family in families):
                raise self._unknown_role(side, role, families)

    def _unknown_role(self, side: str, role: str, known: Iterable[Role[Any]]) -> ConfigError:
        allowed = ", ".join(map(str, known)) or "none"
        return ConfigError(f"{self.kind} has no {side} role {shown(role)}; {side} roles: {allowed}")


class UnknownStepError(UnknownNameError):
    """No step has this kind."""


def by_kind(steps: Iterable[Step[Any]]) -> dict[str, Step[Any]]:
    """Return the steps by kind."""
    return {step.kind: step for step in steps}


class NoParams(StrictModel):
    """The parameters of a step that has none."""


class ModelParams(StrictModel):
    """A language model."""

    model: ModelName  # preset id, folder or Hugging Face id
    model_revision: Revision | None = None  # hugging Face revision; `local-<hash>` for a folder
    dtype: Dtype | None = None  # type of weights and activations
    add_bos: Flag = False  # whether to begin every text with the BOS that the tokenizer defines and does not add

    @property
    def variant(self) -> str:
        """Return the string that identifies the model in `Work.variant`."""
        return f"{self.model}@{self.model_revision}/{self.dtype}"

    def reference(self) -> ModelRef:
        """Return the model, resolved to a folder or hub id and a revision."""
        return resolve_model(self.model, revision=self.model_revision, dtype=self.dtype)


def bos_to_add(tokenizer: Any) -> int:
    """Return the id of the BOS token for `add_bos`. Raise ConfigError if the tokenizer defines no BOS."""
    if tokenizer.bos_token_id is None:
        raise ConfigError("add_bos is set, but the tokenizer of this model defines no BOS; leave add_bos unset")
    return int(tokenizer.bos_token_id)


class SinkParams(StrictModel):
    """What happens to attention sinks."""

    sinks: Literal["exclude", "include"] = "exclude"  # `exclude` leaves them out, except of P1, P2 and P3
    sink_ratio: SinkRatio = SINK_RATIO  # norm of a sink, in medians of its passage

    @property
    def sink_rule(self) -> SinkRule:
        """Return the rule for attention sinks in the form that pooling takes."""
        return SinkRule(self.sink_ratio, self.sinks == "exclude")


class StrategyParam(StrictModel):
    """A pooling strategy and the parameters that differ from its defaults."""

    id: Name
    params: StrategyParams = Field(default_factory=dict)
