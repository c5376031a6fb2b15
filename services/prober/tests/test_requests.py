"""Requests over HTTP that are refused, each with its reason."""

import pytest
from services.prober.tests.test_answers import HEADERS, body


@pytest.mark.parametrize(("num_rows", "status"), [(4, "too_few"), (9, "too_few"), (10, "ok")])
def test_http_probe_needs_five_groups_of_each_class_however_few_the_folds(client, num_rows, status):
    answer = client.post("/probe", json=body(num_rows=num_rows, params={"folds": 2}), headers=HEADERS)
    found = {row["metric"]: row for row in answer.json()["measures"]}["d1.auroc"]
    assert (answer.status_code, found["status"]) == (200, status)
    if status != "ok":
        assert found["value"] is None and "for 2 folds; 5 are needed" in found["reason"]


@pytest.mark.parametrize(
    ("path", "request_body", "status", "message"),
    [
        ("/probe", body(groups=["a"]), 400, "groups has 1 entries for 40 vectors"),
        ("/probe", {"vectors": [[1.0], [1.0, 2.0]], "labels": [0, 1]}, 400, "share one width"),
        ("/probe", body(params={"fold_seeds": [1, 1]}), 422, "each once"),
        ("/probe", body(params={"fold_seeds": [0]}), 422, "not 0, the seed itself"),
        ("/probe", body(task_params={"seeds": [1]}), 400, "task_params do not belong to a concept"),
        ("/probe", body(task="classification", params={"folds": 3}), 400, "params do not belong to a classification"),
        ("/probe", body(task="classification", task_params={"c_values": [-1]}), 422, "c_values.0"),
        ("/probe", body(task="classification", task_params={"hidden": 0}), 422, "task_params.hidden"),
        ("/probe", body(task="regression", task_params={"hidden": 4, "protocol": "paper"}), 422, "paper are linear"),
        (
            "/probe",
            body(task="classification", words=["a"] * 40, task_params={"control": "permuted"}),
            400,
            "words are read by control word_type only",
        ),
        ("/direction", body(method="C9"), 404, "unknown direction 'C9'"),
        ("/direction", body(method="C5"), 400, "needs a sparse autoencoder"),
        ("/probe", {"labels": [0, 1]}, 422, "vectors"),
        ("/probe", body(params={"sensitivity_c": [0]}), 422, "params.sensitivity_c.0: Input should be greater"),
        (
            "/probe",
            body(params={"fold_seeds": [-1]}),
            422,
            "params.fold_seeds.0: Input should be greater than or equal",
        ),
        ("/probe", body(task_params={"compression_c": [0.0]}), 422, "task_params.compression_c.0"),
        ("/probe", body(task_params={"seeds": [-1]}), 422, "task_params.seeds.0"),
        ("/probe", body(task="regression", labels=[10**400] * 40), 422, "labels.0"),
        ("/probe", body(task="classification", splits=["train", "test"] * 20, groups=["g"] * 40), 400, "never parts"),
        ("/probe", body(task="classification", words=["w"]), 400, "words has 1 entries"),
    ],
)
def test_http_errors_are_json_and_say_what_is_wrong(client, path, request_body, status, message):
    answer = client.post(path, json=request_body, headers=HEADERS)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
