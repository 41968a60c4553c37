"""A loaded SavedModel: what it takes, what it gives, and what it says of wrong input."""

import re
from pathlib import Path

import numpy as np
import pytest

from serving.errors import FailedPrecondition, InvalidInput, ModelFailed, ServingError, UnknownSignatureKey
from serving.manager import ModelManager
from serving.pace import QUICK_SECONDS, Pace
from serving.servable import Servable


@pytest.fixture
def half_plus_two(serving: ModelManager) -> Servable:
    with serving.use("half_plus_two") as servable:
        return servable


@pytest.fixture
def kinds(serving: ModelManager) -> Servable:
    with serving.use("kinds") as servable:
        return servable


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_an_input_need_not_be_a_placeholder_nor_fit_the_declared_shape(half_plus_two: Servable) -> None:
    """The signature says [-1, 1] and x:0 is a parser's output; TensorFlow Serving takes [3]."""
    assert half_plus_two.signatures["serving_default"].inputs["x"].tensor == "x:0"
    outputs = half_plus_two.run("serving_default", {"x": floats(1, 2, 5)})
    assert outputs["y"].tolist() == [2.5, 3.0, 4.5]


def test_a_tf_function_serves_from_the_graph(serving: ModelManager) -> None:
    with serving.use("modern") as servable:
        outputs = servable.run("", {"x": floats(1, 2, 3, 4).reshape(2, 2)})
    assert outputs[next(iter(outputs))].tolist() == [[4.0], [8.0]]


def test_tables_are_filled_from_assets(serving: ModelManager) -> None:
    with serving.use("table") as servable:
        outputs = servable.run("", {"words": np.array([b"blue", b"pink"], object)})
    assert outputs["numbers"].tolist() == [2, -1]


def test_outputs_are_chosen_by_the_filter(kinds: Servable) -> None:
    inputs = {"a": np.ones((2, 2), np.float32), "b": np.array([1, 2])}
    assert list(kinds.run("two", inputs, ["twice", "text"])) == ["twice", "text"]
    assert sorted(kinds.run("two", inputs)) == ["raw_bytes", "sum", "text", "twice"]


def test_an_output_that_is_an_input_is_passed_through(kinds: Servable) -> None:
    outputs = kinds.run("passed", {"a": floats(1, 2)})
    assert (outputs["a"].tolist(), outputs["b"].tolist()) == ([1.0, 2.0], [2.0, 3.0])


def test_a_scalar_output_is_an_array_without_dimensions(kinds: Servable) -> None:
    assert kinds.run("scalar", {"a": floats(1, 2).reshape(1, 2)})["total"].shape == ()
    assert kinds.run("string", {"x": np.array(b"word", object)})["y"].item() == b"word"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {},
            r"input size does not match signature: 0!=1 len\(\{\}\) != len\(\{x\}\).*required: \{x\}",
        ),
        ({"x": floats(1), "z": floats(1)}, r"Sent extra: \{z\}"),
        ({"z": floats(1)}, r"Signature input alias: x not found .* expected to be in the set \{x\}"),
        ({"x": np.array([1.0])}, r"Expects arg\[0\] to be float but double is provided. Input 'x'"),
    ],
)
def test_wrong_inputs_are_named_with_what_would_be_right(
    half_plus_two: Servable, inputs: dict, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        half_plus_two.run("serving_default", inputs)


def test_an_unknown_signature_lists_the_known_ones(half_plus_two: Servable) -> None:
    with pytest.raises(
        UnknownSignatureKey, match=r'"tune" not found. Signatures of this model: classify, regress'
    ):
        half_plus_two.run("tune", {})


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (["z"], r"alias not found in signature: z Outputs .* \{y\}"),
        (["y", "y"], "duplicate output tensor alias: y"),
    ],
)
def test_wrong_output_filters_are_refused(half_plus_two: Servable, chosen: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        half_plus_two.run("", {"x": floats(1)}, chosen)


def test_what_the_graph_refuses_carries_its_code(serving: ModelManager) -> None:
    with serving.use("modern") as servable, pytest.raises(ModelFailed) as caught:
        servable.run("", {"x": floats(1, 2, 3).reshape(1, 3)})
    assert caught.value.code.name == "INVALID_ARGUMENT"
    declared = r"Input 'x' was sent with shape \[1,3\]; signature 'serving_default' takes \[\?,2\]"
    assert re.search(declared, str(caught.value))


@pytest.mark.parametrize("name", ["missing", "empty", "torn"])
def test_what_is_no_saved_model_is_refused_by_the_loader(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name != "missing":
        path.mkdir()
    if name == "torn":
        (path / "saved_model.pb").write_bytes(b"\x08\x01\x12\xff")
    with pytest.raises(ServingError):
        Servable.load(path)


def test_unknown_tags_are_refused(made: Path) -> None:
    with pytest.raises(ModelFailed, match="tags"):
        Servable.load(made / "half_plus_two", ["train"])


def test_a_closed_servable_has_let_go_of_its_session(made: Path) -> None:
    servable = Servable.load(made / "half_plus_two")
    servable.close()
    with pytest.raises(ServingError, match="closed"):
        servable.run("", {"x": floats(1)})


def test_one_busy_moment_does_not_make_a_quick_signature_slow() -> None:
    pace = Pace()
    for seconds in (0.5, 0.0001, 0.0001):
        pace.note(seconds)
    assert pace.quick
    pace.note(QUICK_SECONDS * 5)
    assert pace.quick
    pace.note(1.0)
    assert not pace.quick


def test_the_first_call_pays_for_optimisation_and_is_not_counted() -> None:
    pace = Pace()
    pace.note(3.0)
    assert not pace.quick
    pace.note(0.0001)
    assert pace.quick


def test_a_sparse_input_is_named_when_it_is_asked_for(half_plus_two: Servable) -> None:
    from tensorflow.core.protobuf import meta_graph_pb2

    from serving import servable

    proto = meta_graph_pb2.SignatureDef()
    proto.inputs["s"].coo_sparse.values_tensor_name = "v:0"
    proto.outputs["y"].name = "y:0"
    signature = servable._signature("sparse", proto)
    with pytest.raises(FailedPrecondition, match="'s' of signature 'sparse' is a sparse"):
        half_plus_two._prepare("sparse", signature, [(signature, ("y",))], pooled=False)
