"""Answers to requests over HTTP."""

import numpy as np
import pytest

HEADERS = {"Authorization": "Bearer token"}


def body(num_rows=40, shift=2.0, **extra):
    rng = np.random.default_rng(0)
    labels = np.arange(num_rows) % 2
    vectors = rng.normal(size=(num_rows, 6)) + shift * labels[:, None]
    return {"vectors": vectors.tolist(), "labels": labels.tolist(), **extra}


def test_http_probe(client):
    answer = client.post("/probe", json=body(groups=[row // 2 for row in range(40)]), headers=HEADERS)
    assert answer.status_code == 200
    values = {row["metric"]: row for row in answer.json()["measures"]}
    assert values["d1.auroc"]["value"] > 0.8
    assert values["d1.auroc"]["num_groups"] == 20
    folds = answer.json()["folds"]
    assert folds[0::2] == folds[1::2]


@pytest.mark.parametrize(
    ("labels", "task", "metric"),
    [
        ([["a", "b", "c"][row % 3] for row in range(60)], "classification", "probe.macro_f1"),
        ([row % 3 for row in range(60)], "classification", "probe.macro_f1"),
        ([row % 3 + 0.5 for row in range(60)], "regression", "probe.pearson"),
    ],
)
def test_http_probe_takes_classes_and_real_values(client, labels, task, metric):
    codes = np.arange(60) % 3
    vectors = np.random.default_rng(0).normal(size=(60, 4)) + 4 * codes[:, None]
    request = {"vectors": vectors.tolist(), "labels": labels, "task_params": {"num_bootstrap": 10}}
    answer = client.post("/probe", json=request, headers=HEADERS).json()
    assert answer["task"] == task
    assert {row["metric"]: row["value"] for row in answer["measures"]}[metric] > 0.5
    deep = {**request, "task": task, "task_params": {"num_bootstrap": 10, "hidden": 8}}
    answer = client.post("/probe", json=deep, headers=HEADERS).json()
    assert {row["metric"]: row["value"] for row in answer["measures"]}[metric] > 0.5
    named = client.post("/probe", json={**request, "task": "concept"}, headers=HEADERS).json()
    assert "labels must be 0 or 1" in named["error"]["message"]


def test_http_probe_takes_a_null_for_a_vector_that_failed(client):
    request = body(num_rows=60)
    request["vectors"][4] = None
    answer = client.post("/probe", json=request, headers=HEADERS).json()
    found = {row["metric"]: row for row in answer["measures"]}["d1.auroc"]
    assert (found["n"], found["status"]) == (59, "ok")
    assert answer["scores"][4] is None and answer["scores"][5] is not None
    request["vectors"][:20] = [None] * 20
    answer = client.post("/probe", json=request, headers=HEADERS).json()
    assert {row["status"] for row in answer["measures"]} == {"non_finite"}
    request["vectors"] = [None] * 60
    answer = client.post("/probe", json=request, headers=HEADERS)
    assert answer.status_code == 400 and "share one width" in answer.json()["error"]["message"]


def test_http_equal_numbers_are_one_class_and_words_mean_control_labels(client):
    codes = np.arange(60) % 3
    vectors = np.random.default_rng(0).normal(size=(60, 4)) + 4 * codes[:, None]
    labels = [float(code) if row % 2 else int(code) for row, code in enumerate(codes)]
    request = {"vectors": vectors.tolist(), "task_params": {"num_bootstrap": 10}}
    mixed, plain = (
        client.post("/probe", json={**request, "labels": told}, headers=HEADERS).json()["measures"]
        for told in (labels, codes.tolist())
    )
    assert mixed == plain
    request = body(task="classification", words=[str(row % 7) for row in range(40)])
    named = {**request, "task_params": {"control": "word_type"}}
    answers = [client.post("/probe", json=each, headers=HEADERS).json() for each in (request, named)]
    assert answers[0] == answers[1]
