"""A task of Inspect: the share of a model's answers that express a concept, as a scorer of the cluster reads them.

POOLBENCH_HTTP and POOLBENCH_TOKEN name the cluster. `python -m recipes.steered_evaluation` starts it at each strength.
"""

import os

import httpx
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import TaskState, generate

SUBJECTS = (
    *("the harbour", "a school", "my brother", "the new bridge", "breakfast", "a train journey", "the weather"),
    *("our garden", "an old house", "the market", "a football match", "the museum", "winter", "a letter", "the river"),
    *("a birthday", "the hospital", "two neighbours", "a long walk", "the kitchen"),
)
#: From this score on, a text expresses the concept.
THRESHOLD = 0.5


@task
def concept_share(concept: str, max_tokens: int = 60) -> Task:
    """Ask for three sentences about each of some subjects, greedily."""
    samples = [Sample(f"Write three sentences about {subject}.", target=concept) for subject in SUBJECTS]
    config = GenerateConfig(temperature=0.0, max_tokens=max_tokens)
    return Task(samples, solver=generate(), scorer=expresses(concept), config=config)


@scorer(metrics=[accuracy(), stderr()])
def expresses(concept: str) -> Scorer:
    """Score 1 where the cluster's scorer of the concept says that an answer expresses it, else 0."""
    headers = {"Authorization": f"Bearer {os.environ['POOLBENCH_TOKEN']}"}

    async def score(state: TaskState, target: Target) -> Score:
        async with httpx.AsyncClient(base_url=os.environ["POOLBENCH_HTTP"], headers=headers, timeout=60) as cluster:
            answer = await cluster.post(
                "/scorer/score", json={"texts": [state.output.completion], "scorer": target.text}
            )
        answer.raise_for_status()
        value = answer.json()["scores"][0]
        return Score(value=int(value >= THRESHOLD), explanation=f"{concept}: {value:.3f}")

    return score
