"""The queue handlers: tables in, steered texts and their fluency out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from poolbench.concepts import stay
from poolbench.contracts import tables
from poolbench.contracts.tables import CALIBRATION, PROMPTS, require_columns
from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import UNSTEERED
from poolbench.statistics.response import SteeredTables
from poolbench.steps.extractor import CALIBRATION as CALIBRATION_ROLE
from poolbench.steps.extractor import PASSAGES
from poolbench.steps.steerer import (
    COMPLETE,
    CONTINUATIONS,
    CONTINUE,
    DIRECTIONS,
    FLUENCY,
    GENERATE,
    IMPORTED,
    READ,
    SCORES,
    TEXTS,
    CompleteParams,
    GenerateParams,
)
from poolbench.steps.steerer import PROMPTS as PROMPTS_ROLE
from poolbench.worker.taskio import TaskIO
from poolbench_steerer.engine import Generation, GenerationRequest, SteeringEngine
from poolbench_steerer.engine.perplexity import Scored, score_continuations
from poolbench_steerer.host import EngineHost
from poolbench_steerer.plugin.receipts import Receipt
from poolbench_steerer.plugin.spec import Edit, Operation, Steering
from poolbench_steerer.tasks import plan
from poolbench_steerer.tasks.plan import PlannedText, plan_draws, require_affordable
from poolbench_steerer.tokens import Tokens, repeated_4grams, tokens_of


@dataclass
class Batch:
    """All texts of one output name."""

    name: str  # what follows `texts/` and `fluency/` in the task's output roles
    planned: list[plan.PlannedText]
    directions: list[plan.Direction] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # directions that cannot be used, and why
    first: SteeredTables | None = None  # texts that are there, and are written with the others


def generate(host: EngineHost, task: Task, io: TaskIO) -> None:
    """Generate every direction, strength and prompt of the task at once in the engine."""
    _generate(host, task, io, GENERATE.params_of(task))


def complete(host: EngineHost, task: Task, io: TaskIO) -> None:
    """Add texts of further openings, at the strengths of the task and at the best strength by existing scores."""
    _generate(host, task, io, COMPLETE.params_of(task))


def _generate(host: EngineHost, task: Task, io: TaskIO, params: GenerateParams) -> None:
    model = params.reference()
    tokens = tokens_of(model, add_bos=params.add_bos, trust_remote_code=host.config.trust_remote_code)
    batches = _plan(params, task, io, tokens)
    planned = [text for batch in batches for text in batch.planned]
    vectors = [direction.vector for batch in batches for direction in batch.directions]
    requests = [_request(text, params) for text in planned]

    async def job(engine: SteeringEngine) -> tuple[list[Generation], list[Scored]]:
        await engine.register(vectors, confidential=stay(task.inputs.values()))
        total = 2 * len(requests)
        on_done = partial(io.progress, total=total, note="texts")
        texts = await engine.generate(requests, on_done, confidential=task.restricted)
        pairs = [(text.prompt.token_ids, generation.token_ids) for text, generation in zip(planned, texts, strict=True)]
        scored = await score_continuations(
            engine, pairs, lambda done: io.progress(total // 2 + done, total, "fluency"), of_task=True
        )
        return texts, scored

    texts, scored = host.run(model, job, io.check_cancelled)
    start = 0
    for batch in batches:
        part = slice(start, start + len(batch.planned))
        _write(io, batch, texts[part], scored[part], tokens)
        start = part.stop


def read_texts(host: EngineHost, task: Task, io: TaskIO) -> None:
    """Write tokens and likelihood of texts that were steered elsewhere. Such texts have no receipt."""
    params = READ.params_of(task)
    model = params.reference()
    tokens = tokens_of(model, add_bos=params.add_bos, trust_remote_code=host.config.trust_remote_code)
    for role, at in IMPORTED.among(task.inputs):
        if not io.missing & {TEXTS(at.name), FLUENCY(at.name)}:
            continue
        table = io.table(role)
        require_columns(table, tables.IMPORTED_TEXTS, role)
        imported = table.to_pylist()
        ids = [tokens.encode_plain(row["text"]) for row in imported]
        scored = [number for number, token_ids in enumerate(ids) if token_ids]  # the others ended at once
        pairs = [(tokens.encode(imported[number]["prompt"]), ids[number]) for number in scored]

        async def job(engine: SteeringEngine, pairs: Any = pairs) -> list[Scored]:
            return await score_continuations(
                engine, pairs, lambda done: io.progress(done, len(pairs), "fluency"), of_task=True
            )

        nll_of = dict(zip(scored, host.run(model, job, io.check_cancelled) if pairs else [], strict=True))
        fluency = [
            {"text_id": row["text_id"], "mean_nll": score.mean_nll if score else None, "num_tokens": len(ids[number])}
            for number, row in enumerate(imported)
            for score in [nll_of.get(number)]
        ]
        rows = [
            {
                **row,
                "alpha": None,
                "layer": params.layer,
                "token_ids": list(ids[number]),
                "num_tokens": len(ids[number]),
                "repeated_4grams": repeated_4grams(ids[number]),
            }
            for number, row in enumerate(imported)
        ]
        outputs = {FLUENCY(at.name): tables.table_from_rows(fluency, tables.FLUENCY), TEXTS(at.name): texts_table(rows)}
        for output in sorted(outputs.keys() & io.missing):
            io.write_table(output, outputs[output])


def continue_passages(host: EngineHost, task: Task, io: TaskIO) -> None:
    """Write unsteered continuations of the first halves of passages."""
    params = CONTINUE.params_of(task)
    model = params.reference()
    tokens = tokens_of(model, add_bos=params.add_bos, trust_remote_code=host.config.trust_remote_code)
    prompts = []
    passages = plan.choose_passages(io.table(PASSAGES()), params.num_passages)
    require_affordable(len(passages), params.max_tokens)
    for passage in passages:
        half = plan.first_half(tokens.encode(passage["text"]), params.prompt_tokens)
        prompts.append(plan.Prompt(passage["passage_id"], tokens.decode(half), half))
    planned = plan.plan_unsteered(prompts, layer=None)
    requests = [
        GenerationRequest(
            text.prompt.token_ids, params.max_tokens, seed=params.seed, ignore_eos=params.ignore_eos, of_task=True
        )
        for text in planned
    ]

    async def job(engine: SteeringEngine) -> list[Generation]:
        return await engine.generate(requests, lambda done: io.progress(done, len(requests), "continuations"))

    rows = [
        _row(text, generation, tokens)
        for text, generation in zip(planned, host.run(model, job, io.check_cancelled), strict=True)
    ]
    io.write_table(CONTINUATIONS(), texts_table(rows))


def _plan(params: GenerateParams, task: Task, io: TaskIO, tokens: Tokens) -> list[Batch]:
    """Return the texts of each output name with a missing output; those that are completed come with the first ones."""
    prompts, draws = _prompts(params, io, tokens)
    sources = {at.name: role for role, at in DIRECTIONS.among(task.inputs)}
    if not sources:
        return [Batch(plan.UNSTEERED, plan.plan_unsteered(prompts, params.layer, draws))]
    completes, erases, unit = isinstance(params, CompleteParams), params.operation == "erase", _unit(params, io)
    unsteered = _tables(io, UNSTEERED) if completes else None
    batches, num_texts = [], 0
    for name, role in sources.items():
        if not io.missing & {TEXTS(name), FLUENCY(name)}:
            continue
        usable, skipped = plan.choose_directions(name, io.table(role), params.direction_ids, task.inputs[role])
        usable = plan.erased_subspace(name, usable) if erases else usable
        first = _tables(io, name) if completes else None
        strengths = [plan.strengths_to_read(one.key, first, unsteered, params) for one in usable]
        num_texts += len(prompts) * params.num_samples * sum(map(len, strengths[:1] if erases else strengths))
        require_affordable(num_texts, params.max_tokens)
        if erases:
            planned = plan.plan_erased(prompts, usable, params.strengths, params.layer, draws)
        else:
            planned = [
                text
                for direction, of_direction in zip(usable, strengths, strict=True)
                for text in plan.plan_texts(prompts, [direction], of_direction, params.layer, unit, draws)
            ]
        batches.append(Batch(name, planned, usable, skipped, first))
    return batches


def _prompts(params: GenerateParams, io: TaskIO, tokens: Tokens) -> tuple[list[plan.Prompt], plan.Draws | None]:
    """Return the prompts of a task, and how their texts are sampled."""
    table = io.table(PROMPTS_ROLE())
    require_columns(table, PROMPTS, PROMPTS_ROLE())
    prompts = [_prompt(row, tokens) for row in table.to_pylist()]
    draws = plan_draws(
        [prompt.prompt_id for prompt in prompts],
        temperature=params.temperature,
        num_samples=params.num_samples,
        seed=params.seed,
    )
    require_affordable(len(prompts) * params.num_samples, params.max_tokens)
    return prompts, draws


def _unit(params: GenerateParams, io: TaskIO) -> float:
    """Return the unit of strength as a coefficient."""
    if params.alpha_unit == "absolute":
        return 1.0
    calibration = io.table(CALIBRATION_ROLE())
    require_columns(calibration, CALIBRATION, CALIBRATION_ROLE())
    return plan.residual_norm(calibration, params.layer)


def _tables(io: TaskIO, name: str) -> SteeredTables:
    """Return the texts of a name that the task brings, with their scores and likelihoods."""
    schemas = {TEXTS(name): tables.TEXTS, SCORES(name): tables.SCORES, FLUENCY(name): tables.FLUENCY}
    brought = {role: io.table(role) for role in schemas}
    for role, schema in schemas.items():
        require_columns(brought[role], schema, role)
    return SteeredTables(*brought.values())


def _prompt(row: dict[str, Any], tokens: Tokens) -> plan.Prompt:
    """Return a row of PROMPTS, or of CHAT_PROMPTS, whose text the model's reply begins with."""
    opening, instruction = row["text"], row.get("instruction")
    if instruction is None:
        return plan.Prompt(row["prompt_id"], opening, tokens.encode(opening))
    return plan.Prompt(row["prompt_id"], f"{instruction}\n\n{opening}", tokens.encode_reply(instruction, opening))


def _request(text: plan.PlannedText, params: GenerateParams) -> GenerationRequest:
    steering = None
    if text.vector_id is not None and text.layer is not None:
        operation: Operation = "erase" if text.erases else "add"
        vector_ids = (text.vector_id, *text.also_erased)
        edits = tuple(Edit(vector_id, text.layer, text.alpha, operation) for vector_id in vector_ids)
        steering = Steering(edits, params.positions)
    draw = text.draw
    return GenerationRequest(
        text.prompt.token_ids,
        params.max_tokens,
        steering,
        temperature=0.0 if draw is None else draw.temperature,
        seed=params.seed if draw is None else draw.seed,
        ignore_eos=params.ignore_eos,
        of_task=True,
    )


def _write(
    io: TaskIO, batch: Batch, generations: Sequence[Generation], scored: Sequence[Scored], tokens: Tokens
) -> None:
    rows = [_row(text, generation, tokens) for text, generation in zip(batch.planned, generations, strict=True)]
    meta = {"skipped_directions": json.dumps(batch.skipped)} if batch.skipped else None
    text_ids = [row["text_id"] for row in rows]
    nlls, counts = [score.mean_nll for score in scored], [score.num_tokens for score in scored]
    fluency = pa.table({"text_id": text_ids, "mean_nll": nlls, "num_tokens": counts}, schema=tables.FLUENCY)
    texts = texts_table(rows)
    if batch.first is not None:
        texts, fluency = (
            pa.concat_tables([first, further.cast(first.schema)] if further.num_rows else [first])
            for first, further in ((batch.first.texts, texts), (batch.first.fluency, fluency))
        )
    for role, table in ((FLUENCY(batch.name), fluency), (TEXTS(batch.name), texts)):
        if role in io.missing:
            io.write_table(role, table, meta=meta)


def _row(text: plan.PlannedText, generation: Generation, tokens: Tokens) -> dict[str, Any]:
    return text_row(text, tokens.decode(generation.token_ids), generation.token_ids, generation.receipt)


def text_row(planned: PlannedText, text: str, token_ids: Sequence[int], receipt: Receipt | None) -> dict[str, Any]:
    """Return a row of TEXTS, with the columns of SAMPLES if the text was sampled."""
    draw = planned.draw
    return {
        **({} if draw is None else draw.columns()),
        "text_id": planned.text_id,
        "prompt_id": planned.prompt.prompt_id,
        "direction_key": planned.direction_key,
        "strength": planned.strength,
        "alpha": planned.alpha,
        "layer": planned.layer,
        "prompt": planned.prompt.text,
        "text": text,
        "token_ids": list(token_ids),
        "num_tokens": len(token_ids),
        "repeated_4grams": repeated_4grams(token_ids),
        "vector_hash": receipt.vector_ids[0] if receipt else None,
        "positions_changed": receipt.positions_changed if receipt else 0,
        "positions_expected": receipt.positions_expected if receipt else 0,
    }


def texts_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Build a TEXTS table from rows, with the columns of SAMPLES if texts were sampled."""
    sampled = any("sample" in row for row in rows)
    return tables.table_from_rows(rows, pa.schema([*tables.TEXTS, *tables.SAMPLES]) if sampled else tables.TEXTS)
