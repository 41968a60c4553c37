"""The REST protocol, as TensorFlow Serving's clients know it."""

import asyncio
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving import json_numbers
from serving.model_server.rest import RESTApp
from tests.serving.model_server.conftest import PREDICT

Ask = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def ask(app: RESTApp) -> Ask:
    def ask(path: str, body: object = None, method: str | None = None) -> tuple[int, str]:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        status, answer = asyncio.run(app.respond(method or ("GET" if body is None else "POST"), path, data))
        return status, answer.decode("utf-8", "surrogateescape")

    return ask


@pytest.fixture
def ask_in_both_ways(ask: Ask) -> Ask:
    """Asks with bodies of numbers read by C and with all bodies parsed; both must be answered alike."""

    def ask_in_both_ways(path: str, body: bytes) -> tuple[int, str]:
        answer = ask(path, body)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_numbers, "read", lambda body: None)
            assert ask(path, body) == answer
        return answer

    return ask_in_both_ways


@pytest.fixture(scope="module")
def echo(ask: Ask) -> Callable[[str, str], str]:
    """Sends one JSON value in the column format to a signature that gives it back; returns the answer's
    text."""

    def echo(signature: str, text: str) -> str:
        body = f'{{"signature_name": "{signature}", "inputs": {text}}}'.encode()
        status, answer = ask("/v1/models/kinds:predict", body)
        return answer.removeprefix('{"outputs":').removesuffix("}") if status == 200 else f"{status} {answer}"

    return echo


def test_rows_give_predictions_and_columns_give_outputs(ask: Ask) -> None:
    assert ask(PREDICT, {"instances": [1.0, 2.0, 5]}) == (200, '{"predictions":[2.5,3.0,4.5]}')
    assert ask(PREDICT, {"inputs": [[1.0], [2.0]]}) == (200, '{"outputs":[[2.5],[3.0]]}')
    assert ask(PREDICT, {"instances": [{"x": 1.0}, {"x": 2.0}]}) == (200, '{"predictions":[2.5,3.0]}')
    assert ask(PREDICT, {"inputs": {"x": 1.0, "unused": "y"}}) == (200, '{"outputs":2.5}')


def test_of_members_with_the_same_name_the_first_counts(ask_in_both_ways: Ask) -> None:
    twice = b'"signature_name": "serving_default", "signature_name": 3'
    body = b'{"instances": [1.0], "instances": [5.0], ' + twice + b"}"
    assert ask_in_both_ways(PREDICT, body) == (200, '{"predictions":[2.5]}')
    names = b'{"signature_name": "serving_default", "signature_name": "other", "instances": [1.0]}'
    assert ask_in_both_ways(PREDICT, names) == (200, '{"predictions":[2.5]}')
    columns = b'{"inputs": {"x": [1.0], "x": [5.0]}}'
    assert ask_in_both_ways(PREDICT, columns) == (200, '{"outputs":[2.5]}')


def test_several_tensors_are_objects_by_name(ask: Ask) -> None:
    rows = [{"a": [1, 2], "b": 3}, {"a": [4, 5], "b": 6}]
    status, answer = ask("/v1/models/kinds:predict", {"signature_name": "two", "instances": rows})
    assert status == 200
    assert json.loads(answer) == {
        "predictions": [
            {"raw_bytes": {"b64": "Mw=="}, "sum": 6.0, "text": "3", "twice": 6},
            {"raw_bytes": {"b64": "Ng=="}, "sum": 15.0, "text": "6", "twice": 12},
        ]
    }
    columns = {"a": [[1, 2], [4, 5]], "b": [3, 6]}
    status, answer = ask("/v1/models/kinds:predict", {"signature_name": "two", "inputs": columns})
    assert (status, json.loads(answer)["outputs"]["sum"]) == (200, [6.0, 15.0])


@pytest.mark.parametrize(
    ("signature", "text", "expected"),
    [
        ("float32", "3", "3.0"),
        ("float32", "[0.1, 1e-7, 1e40, -1e40]", "[0.1,1e-7,Infinity,-Infinity]"),
        ("float32", "[NaN, Inf, -Infinity, 2]", "[NaN,Infinity,-Infinity,2.0]"),
        ("float64", "[1e16, 0.1, 123456789012345678901]", "[1e+16,0.1,1.2345678901234568e+20]"),
        ("float16", "[0.5, 65504]", "[0.5,65504.0]"),
        ("bfloat16", "[0.5, 3]", "[0.5,3.0]"),
        ("int8", "[-128, 127]", "[-128,127]"),
        ("uint16", "65535", "65535"),
        (
            "int64",
            "[9223372036854775807, -9223372036854775808]",
            "[9223372036854775807,-9223372036854775808]",
        ),
        ("uint64", "18446744073709551615", "18446744073709551615"),
        ("bool", "[true, false]", "[true,false]"),
        ("string", '["a", {"b64": "aGk"}, "\\u00e9\\n"]', '["a","hi","é\\n"]'),
        ("string", '{"b64": "/w=="}', '"\udcff"'),
        ("float32", "[]", "[]"),
        ("float32", "[[], []]", "[[],[]]"),
    ],
)
def test_values_come_back_as_they_went(
    echo: Callable[[str, str], str], signature: str, text: str, expected: str
) -> None:
    assert echo(signature, text) == expected


def test_strings_need_not_be_utf8(ask: Ask) -> None:
    status, answer = ask(
        "/v1/models/kinds:predict", b'{"signature_name": "string", "instances": ["\xff\xfe"]}'
    )
    assert (status, answer.encode("utf-8", "surrogateescape")) == (200, b'{"predictions":["\xff\xfe"]}')


@pytest.mark.parametrize(
    ("signature", "text", "reason"),
    [
        ("float32", '"1.0"', "Type: String is not of expected type: float"),
        ("float32", "true", "Type: True is not of expected type: float"),
        ("float32", "[1.0, true]", "Type: True is not of expected type: float"),
        ("float32", "null", "Type: Null is not of expected type: float"),
        ("int32", "1.0", "Type: Number is not of expected type: int32"),
        ("int32", "2147483648", "not of expected type: int32"),
        ("int8", "300", "not of expected type: int8"),
        ("uint8", "-1", "not of expected type: uint8"),
        ("int64", "9223372036854775808", "not of expected type: int64"),
        ("int64", "123456789012345678901234", "not of expected type: int64"),
        ("bool", "1", "not of expected type: bool"),
        ("string", "1", "not of expected type: string"),
        ("string", '{"b64": "%%"}', "Unable to base64 decode"),
        ("float32", "[[1], [2, 3]]", "Encountered list at unexpected size: 2 at level: 1 expected size: 1"),
        ("float32", "[1, [2]]", "Encountered list at unexpected level: 1 expected < 1"),
        ("float32", "[[1], 2]", "found at incorrect level: 2 in the JSON DOM. Expected at level: 2"),
        ("float32", "[nan]", "JSON Parse error"),
        ("float64", "1e400", "JSON Parse error"),
    ],
)
def test_wrong_values_are_refused_and_quoted(
    echo: Callable[[str, str], str], signature: str, text: str, reason: str
) -> None:
    answer = echo(signature, text)
    assert answer.startswith('400 {"error":')
    assert reason in answer


def test_what_json_cannot_carry_is_not_implemented(ask: Ask, echo: Callable[[str, str], str]) -> None:
    assert echo("complex64", "1").startswith("501 ")
    status, answer = ask("/v1/models/kinds:predict", {"signature_name": "complex64", "instances": [1]})
    assert status == 400
    assert "Failed to process element: 0 of 'instances' list. Error: UNIMPLEMENTED: " in answer


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "JSON Parse error: The document is empty"),
        (b"[1]", "JSON Value: [1] Is not object"),
        (b'{"instances": [1]} x', "JSON Parse error"),
        (b'{"instances": 1}', "Excepting 'instances' to be an list/array"),
        (b'{"instances": []}', "No values in 'instances' array"),
        (b'{"instances": [1], "inputs": 1}', "expecting only one of 'inputs' or 'instances'"),
        (b'{"rows": [1]}', "Missing 'inputs' or 'instances' key"),
        (b'{"signature_name": 1, "instances": [1]}', "'signature_name' key must be a string value."),
        (b'{"instances": [1, {"x": 2}]}', "Expecting value/list but got object at item 1 of input list"),
        (b'{"instances": [{"x": 2}, 1]}', "Expecting object but got list at item 1 of input list"),
        (b'{"instances": [{"z": 2}]}', "does not have named input: z. Inputs: x."),
        (b'{"instances": [{}]}', "keys must be equal to: x"),
        (b'{"inputs": {"z": 2}}', "Missing named input: x in 'inputs' object."),
        (b'{"instances": [1, [2]]}', "Error: INVALID_ARGUMENT: Expecting shape [] but got: [1]"),
        (b'{"instances": [[1], [2, 3]]}', "Expecting tensor size: 1 but got: 2"),
        (b'{"instances": [' + b"[" * 300 + b"]" * 300 + b"]}", "nested"),
        (b"[" * 100_000, "JSON Parse error"),
        (b'{"signature_name": "tune", "instances": [1]}', '\\"tune\\" not found in signature def'),
    ],
)  # fmt: skip
def test_malformed_bodies_say_what_is_wrong(ask: Ask, body: bytes, reason: str) -> None:
    status, answer = ask(PREDICT, body)
    assert status == 400
    assert reason in answer


def test_outputs_without_a_common_batch_have_no_row_format(ask: Ask) -> None:
    body = {"signature_name": "scalar", "instances": [[1, 2]]}
    assert ask("/v1/models/kinds:predict", body) == (
        400,
        '{"error":"Tensor name: total has no shape information "}',
    )
    body = {"signature_name": "uneven", "instances": [[1, 2], [3, 4]]}
    assert "q has inconsistent batch size: 1 expecting: 2" in ask("/v1/models/kinds:predict", body)[1]
    body = {"signature_name": "scalar", "inputs": [[1, 2]]}
    assert ask("/v1/models/kinds:predict", body) == (200, '{"outputs":3.0}')


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("/v1/models/none:predict", b"{", 400, "JSON Parse error"),
        ("/v1/models/none:predict", b"{}", 404, "Servable not found for request: Latest(none)"),
        (
            "/v1/models/kinds/versions/9:predict",
            b"{}",
            404,
            "Servable not found for request: Specific(kinds, 9)",
        ),
        ("/v1/models/kinds/labels/new:predict", b"{}", 400, "Unrecognized servable version label: new"),
        (
            "/v1/models/kinds/versions/99999999999999999999:predict",
            b"{}",
            400,
            "Failed to convert version: 9999",
        ),
        ("/v1/models/kinds:PREDICT", b"{}", 400, "Malformed request: POST /v1/models/kinds:PREDICT"),
        ("/v1/models/kinds:predict?x=1", b"{}", 400, "Malformed request: POST /v1/models/kinds:predict?x=1"),
        ("/v1/models", None, 400, "Missing model name in request."),
        ("/v1/models/kinds?x=1", None, 404, "Could not find any versions of model kinds?x=1"),
        ("/v1/models/kinds/versions/3", None, 404, "Could not find version 3 of model kinds"),
        ("/v1/models/none/metadata", None, 404, "Servable not found for request: Latest(none)"),
    ],
)
def test_what_is_not_there_is_named(
    ask: Ask, path: str, body: bytes | None, status: int, reason: str
) -> None:
    answer = ask(path, body)
    assert answer[0] == status
    assert reason in answer[1]


def test_paths_match_in_any_case_and_names_are_percent_decoded(ask: Ask) -> None:
    assert ask("/V1/Models/half%5Fplus_two/Versions/1:predict", {"instances": [2]})[0] == 200


def test_status_prints_versions_as_strings_and_defaults_too(ask: Ask) -> None:
    status, answer = ask("/v1/models/kinds")
    expected = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert (status, json.loads(answer)) == (200, {"model_version_status": [expected]})


def test_metadata_nests_the_signatures_twice(ask: Ask) -> None:
    status, answer = ask("/v1/models/half_plus_two/metadata")
    document = json.loads(answer)
    assert status == 200
    assert document["model_spec"] == {"name": "half_plus_two", "signature_name": "", "version": "1"}
    signatures = document["metadata"]["signature_def"]["signature_def"]
    assert signatures["serving_default"]["inputs"]["x"]["dtype"] == "DT_FLOAT"
    assert signatures["serving_default"]["method_name"] == "tensorflow/serving/predict"


def test_classify_and_regress_give_results(ask: Ask) -> None:
    examples = {"examples": [{"x": 1.0}, {"x": [2.0]}]}
    classified = ask("/v1/models/half_plus_two:classify", examples | {"signature_name": "classify"})
    assert classified == (200, '{"results":[[["positive",2.5]],[["positive",3.0]]]}')
    scores = ask("/v1/models/half_plus_two:classify", examples | {"signature_name": "scores_only"})
    assert scores == (200, '{"results":[[["",2.5]],[["",3.0]]]}')
    regressed = ask("/v1/models/half_plus_two:regress", examples | {"signature_name": "regress"})
    assert regressed == (200, '{"results":[2.5,3.0]}')


def test_the_context_fills_in_what_an_example_lacks(ask: Ask) -> None:
    body = {"signature_name": "regress", "context": {"x": 4.0}, "examples": [{}, {"x": 2.0}]}
    assert ask("/v1/models/half_plus_two:regress", body) == (200, '{"results":[4.0,3.0]}')


def test_features_sent_to_a_signature_of_examples_are_told_where_to_go(ask: Ask) -> None:
    status, answer = ask(PREDICT, {"signature_name": "regress", "instances": [{"x": 1.0}]})
    assert status == 400
    assert "does not have named input: x. Inputs: inputs." in answer
    assert answer.endswith("call :classify or :regress, or predict with signature_name 'serving_default'.\"}")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "When method is classify, key 'examples' is expected and was not found"),
        ({"examples": 1}, "Expecting 'examples' value to be an list/array"),
        ({"examples": []}, "'examples' value is an empty array"),
        ({"examples": [1]}, "Example must be JSON object but got JSON Number"),
        ({"examples": [{"x": None}]}, "Feature: x has element with unexpected JSON type: Null"),
        ({"examples": [{"x": [[1]]}]}, "Feature: x has element with unexpected JSON type: Array"),
        ({"examples": [{"x": [1, 2.0]}]}, "Unexpected element type in feature: x expecting type: int64"),
        ({"examples": [{"x": 2**63}]}, "Feature: x has uint64 element. Only int64 is supported."),
        ({"examples": [{"x": 2}]}, "Data types don't match"),
        ({"examples": [{"x": 2.0}], "signature_name": "tune"}, "No signature was found with the name: tune"),
        (
            {"examples": [{"x": 2.0}], "signature_name": "serving_default"},
            "No regression inputs found in SignatureDef",
        ),
        ({"examples": [{"x": 2.0}], "signature_name": "classify"}, "Expected one output Tensor."),
    ],
)
def test_wrong_examples_are_named(ask: Ask, body: dict, reason: str) -> None:
    status, answer = ask("/v1/models/half_plus_two:regress", {"signature_name": "regress"} | body)
    assert status == 400
    assert reason in answer


FINITE = st.floats(width=32, allow_nan=False)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.lists(FINITE, min_size=3, max_size=3), min_size=1, max_size=5))
def test_finite_numbers_are_read_alike(ask_in_both_ways: Ask, rows: list[list[float]]) -> None:
    body = json.dumps({"signature_name": "float32", "instances": rows}).replace("Infinity", "1e39")
    assert ask_in_both_ways("/v1/models/kinds:predict", body.encode())[0] == 200


@pytest.mark.parametrize(
    "value",
    [
        *["[1, 2.5, -3e2]", "[[1, 2], [3, 4]]", "[[1], [2, 3]]", "[[1, 2], [3], [4, 5, 6]]"],
        *["[1, true]", '[1, "a"]', "[1, null]", "[]", "[[]]", "[[[1]]]", "[[1, 2], [3, [4]]]", "[1, [2]]"],
        *["[[1], 2]", "7", '{"x": [1, 2]}', '{"z": [1]}', "[NaN, 1]", "[1e39]", "[3000000000]", "[01]"],
        *["[1.]", "[-0, -1]", "[-0.0]", "[1e400]", "[99999999999999999999]", "[9223372036854775807]"],
        *["[.5]", "[+1]", "[-]", "[1,]", "[1 2]", "[[1]", '{"x": [1], "z": [2.5]}', '{"x": [1], "x": [2]}'],
        *["[[[[[[[[[1]]]]]]]]]"],
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "signature", ["float32", "float64", "half", "int8", "int32", "int64", "string", "bool", "uint64"]
)
@pytest.mark.parametrize("form", ["instances", "inputs"])
def test_the_fast_reader_refuses_and_accepts_what_the_others_do(
    ask_in_both_ways: Ask, value: str, signature: str, form: str
) -> None:
    body = f'{{"signature_name": "{signature}", "{form}": {value}}}'
    ask_in_both_ways("/v1/models/kinds:predict", body.encode())
    ask_in_both_ways("/v1/models/kinds:predict", body[:-2].encode())
    behind = f' {{ "{form}" : {value}\n, "signature_name":\t"{signature}" }} '
    ask_in_both_ways("/v1/models/kinds:predict", behind.encode())


def test_many_columns_are_read_alike(ask_in_both_ways: Ask) -> None:
    unused = ", ".join(f'"u{number}": [{number}.5]' for number in range(600))
    for unlike in ("", ', "s": "a \\" \\"x\\": "'):
        body = f'{{"inputs": {{"x": [1.0], {unused}{unlike}, "x": [5.0]}}}}'
        assert ask_in_both_ways(PREDICT, body.encode()) == (200, '{"outputs":[2.5]}')


def test_a_version_of_too_many_digits_is_a_mistake_of_the_client(ask: Ask) -> None:
    for digits in (20, 5000):
        status, answer = ask(
            f"/v1/models/half_plus_two/versions/{'9' * digits}:predict", {"instances": [1.0]}
        )
        assert (status, "Failed to convert version" in answer) == (400, True)
    padded = f"/v1/models/half_plus_two/versions/{'0' * 5000}77:predict"
    assert ask(padded, {"instances": [1.0]})[0] == 404


def test_columns_of_numbers_are_read_alike(ask_in_both_ways: Ask) -> None:
    columns = b'{"signature_name": "two", "inputs": {"b": [3, 6], "a": [[1.5, 2], [4, 5]], "unused": [1]}}'
    status, answer = ask_in_both_ways("/v1/models/kinds:predict", columns)
    assert (status, json.loads(answer)["outputs"]["sum"]) == (200, [6.5, 15.0])
    rows = b'{"signature_name": "two", "instances": [{"a": [1, 2], "b": 3}]}'
    assert ask_in_both_ways("/v1/models/kinds:predict", rows)[0] == 200


def test_many_rows_keep_their_order(ask: Ask) -> None:
    values = np.random.default_rng(1).normal(size=(4096, 20)).astype(np.float32)
    status, answer = ask(
        "/v1/models/kinds:predict", {"signature_name": "float32", "instances": values.tolist()}
    )
    assert status == 200
    np.testing.assert_array_equal(np.array(json.loads(answer)["predictions"], np.float32), values)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.sampled_from(["x", "b64", "a", "b"]), children)
    ),
    max_leaves=12,
)
BODIES = st.dictionaries(
    st.sampled_from(["instances", "inputs", "signature_name", "examples", "context"]), JSON
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(
    BODIES, st.sampled_from(["predict", "classify", "regress"]), st.sampled_from(["half_plus_two", "kinds"])
)
def test_no_json_is_worse_than_a_client_error(
    ask_in_both_ways: Ask, body: dict, verb: str, model: str
) -> None:
    status, answer = ask_in_both_ways(f"/v1/models/{model}:{verb}", json.dumps(body).encode())
    assert status in (200, 400, 501), answer


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.binary(max_size=80))
def test_no_bytes_are_worse_than_a_client_error(ask_in_both_ways: Ask, body: bytes) -> None:
    assert ask_in_both_ways(PREDICT, b'{"instances": [' + body + b"]}")[0] in (200, 400)


def test_nan_and_infinity_stand_where_they_belong_among_named_rows(ask: Ask) -> None:
    body = b'{"signature_name": "two", "instances": [{"a": [NaN, 1], "b": 1}, {"a": [1, 1], "b": 1}]}'
    status, answer = ask("/v1/models/kinds:predict", body)
    rows = json.loads(answer)["predictions"]
    assert (status, math.isnan(rows[0]["sum"]), rows[1]["sum"]) == (200, True, 3.0)
