"""The released recipe of Holmes as a plain PyTorch loop: what its code does without the trainer around it."""

import numpy as np
import torch
from transformers import get_linear_schedule_with_warmup

from poolbench_prober.probing.models import Problem
from poolbench_prober.probing.published import RELEASED


def fit(problem: Problem) -> np.ndarray:
    """Return the predictions [n] of the probe of one seed, as it was after its best epoch on dev."""
    schedule, generator = RELEASED.schedule, torch.Generator().manual_seed(problem.seed)
    x = torch.from_numpy(problem.vectors_nD.astype(np.float32))
    y = torch.from_numpy(problem.values.astype(np.float32 if problem.is_regression else np.int64))
    train, dev = (torch.from_numpy(problem.rows[split]) for split in ("train", "dev"))
    torch.manual_seed(problem.seed)
    probe = torch.nn.Sequential(
        torch.nn.Dropout(schedule.dropout), torch.nn.Linear(x.shape[1], max(1, problem.num_classes))
    )
    optimizer = torch.optim.Adam(probe.parameters(), lr=schedule.learning_rate)
    num_steps = schedule.num_epochs * -(-len(train) // schedule.batch)
    rates = get_linear_schedule_with_warmup(optimizer, schedule.warm_up * num_steps, num_steps)
    losses: list[float] = []
    best = {name: value.clone() for name, value in probe.state_dict().items()}
    for epoch in range(schedule.num_epochs):
        probe.train()
        for rows in train[torch.randperm(len(train), generator=generator)].split(schedule.batch):
            optimizer.zero_grad()
            _loss(problem, probe(x[rows]), y[rows]).backward()
            optimizer.step()
            rates.step()
        probe.eval()
        with torch.no_grad():
            losses.append(float(_loss(problem, probe(x[dev]), y[dev])))
        if losses[-1] == min(losses):
            best = {name: value.clone() for name, value in probe.state_dict().items()}
        elif epoch - int(np.argmin(losses)) >= (schedule.patience or schedule.num_epochs):
            break
    probe.load_state_dict(best)
    with torch.no_grad():
        outputs = probe(x).numpy()
    return outputs[:, 0] if problem.is_regression else outputs.argmax(axis=1)


def _loss(problem: Problem, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if problem.is_regression:
        return torch.nn.functional.smooth_l1_loss(outputs[:, 0], targets)
    return torch.nn.functional.cross_entropy(torch.softmax(outputs, dim=1), targets)
