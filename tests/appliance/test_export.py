"""Serving input receivers and exported SavedModels."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator import Estimator, EstimatorSpec, ModeKeys, RunConfig, export
from appliance.estimator.checkpoints import CheckpointMismatch
from tests.appliance.models import line, linear_model_fn

FEATURES = {"x": tf.io.FixedLenFeature([1], tf.float32)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    config = RunConfig(str(tmp_path_factory.mktemp("model")))
    return Estimator(linear_model_fn, config=config).train(line(repeat=None), steps=5)


def example(x):
    feature = tf.train.Feature(float_list=tf.train.FloatList(value=[x]))
    return tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString()


def test_an_export_predicts_what_the_estimator_predicts(trained, tmp_path):
    path = trained.export_saved_model(tmp_path, export.build_parsing_serving_input_receiver_fn(FEATURES))
    assert isinstance(path, bytes)
    assert os.path.dirname(os.fsdecode(path)) == str(tmp_path)
    assert os.listdir(tmp_path) == [os.path.basename(os.fsdecode(path))]
    expected = [row["y"] for row in trained.predict(line(count=3))]
    signature = tf.saved_model.load(os.fsdecode(path)).signatures["serving_default"]
    got = signature(tf.constant([example(x) for x in (0.0, 0.5, 1.0)]))
    np.testing.assert_allclose(got["y"], expected, rtol=1e-6)
    assert set(got) == {"y", "double"}


def test_signature_and_tags_are_those_that_serving_looks_for(trained, tmp_path):
    path = os.fsdecode(
        trained.export_saved_model(tmp_path, export.build_parsing_serving_input_receiver_fn(FEATURES))
    )
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], path)
        signature = meta.signature_def["serving_default"]
        assert signature.method_name == "tensorflow/serving/predict"
        assert signature.inputs["examples"].name == "input_example_tensor:0"
        outputs = session.run(signature.outputs["y"].name, {"input_example_tensor:0": [example(0.0)]})
        assert outputs.shape == (1, 1)
        assert any(node.name.startswith("ParseExample/") for node in meta.graph_def.node)


def test_raw_receiver_is_fed_features_by_name(trained, tmp_path):
    receiver_fn = export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None, 1], tf.float32)})
    path = trained.export_saved_model(str(tmp_path), receiver_fn)
    signature = tf.saved_model.load(os.fsdecode(path)).signatures["serving_default"]
    assert signature(x=tf.constant([[1.0]]))["y"].shape == (1, 1)


def test_assets_text_and_an_older_checkpoint(trained, tmp_path):
    (tmp_path / "note.txt").write_text("hello")
    path = os.fsdecode(
        trained.export_saved_model(
            str(tmp_path / "export"),
            export.build_parsing_serving_input_receiver_fn(FEATURES),
            assets_extra={"notes/one.txt": str(tmp_path / "note.txt")},
            as_text=True,
            checkpoint_path=os.path.join(trained.model_dir, "model.ckpt-0"),
        )
    )
    assert os.path.exists(os.path.join(path, "saved_model.pbtxt"))
    with open(os.path.join(path, "assets.extra", "notes", "one.txt")) as copied:
        assert copied.read() == "hello"
    signature = tf.saved_model.load(path).signatures["serving_default"]
    assert signature(tf.constant([example(1.0)]))["y"] == 0


def test_two_exports_in_one_second_get_names_of_their_own(trained, tmp_path):
    receiver_fn = export.build_parsing_serving_input_receiver_fn(FEATURES)
    paths = {trained.export_saved_model(str(tmp_path), receiver_fn) for _ in range(2)}
    assert len(paths) == 2
    assert len(os.listdir(tmp_path)) == 2


def test_exports_at_the_same_time_do_not_meet(trained, tmp_path):
    """Two threads that start in the same second both publish a whole model."""
    receiver_fn = export.build_parsing_serving_input_receiver_fn(FEATURES)
    with ThreadPoolExecutor(2) as pool:
        paths = set(pool.map(lambda _: trained.export_saved_model(str(tmp_path), receiver_fn), range(2)))
    assert sorted(os.listdir(tmp_path)) == sorted(os.path.basename(os.fsdecode(path)) for path in paths)
    assert len(paths) == 2
    for path in paths:
        assert tf.saved_model.contains_saved_model(os.fsdecode(path))


def test_nothing_is_left_when_the_export_fails(trained, tmp_path):
    def broken():
        raise KeyError("broken receiver")

    with pytest.raises(KeyError):
        trained.export_saved_model(str(tmp_path), broken)
    assert os.listdir(tmp_path) == []


def test_an_untrained_model_cannot_be_exported(tmp_path):
    model = Estimator(linear_model_fn, model_dir=str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="Couldn't find trained model"):
        model.export_saved_model(str(tmp_path), export.build_parsing_serving_input_receiver_fn(FEATURES))


def test_graphs_of_all_modes_share_one_set_of_variables(trained, tmp_path):
    supervised = export.build_supervised_input_receiver_fn_from_input_fn(line())
    path = os.fsdecode(
        trained.experimental_export_all_saved_models(
            str(tmp_path),
            {
                ModeKeys.TRAIN: supervised,
                ModeKeys.EVAL: supervised,
                ModeKeys.PREDICT: export.build_parsing_serving_input_receiver_fn(FEATURES),
            },
        )
    )
    for tag, key in (("train", "train"), ("eval", "eval"), ("serve", "serving_default")):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            meta = tf.compat.v1.saved_model.load(session, [tag], path)
            assert key in meta.signature_def
            assert session.run("weight/Read/ReadVariableOp:0") == trained.get_variable_value("weight")


def test_a_mode_with_a_variable_that_was_never_trained_is_refused(trained, tmp_path):
    def wider(features, labels, mode, params):
        tf.compat.v1.get_variable("never_trained", [])
        return linear_model_fn(features, labels, mode, params)

    model = Estimator(wider, model_dir=trained.model_dir)
    with pytest.raises(CheckpointMismatch, match=r"it lacks: never_trained \(\)"):
        model.export_saved_model(str(tmp_path), export.build_parsing_serving_input_receiver_fn(FEATURES))


def test_classify_and_regress_signatures_need_a_string_input(trained, tmp_path):
    """A parsing receiver gives all signatures; a raw one only `predict`, and no default."""

    def model_fn(features, labels, mode, params):
        spec = linear_model_fn(features, labels, mode, params)
        scores = spec.predictions["y"]
        outputs = {
            "serving_default": export.ClassificationOutput(scores=scores),
            "regression": export.RegressionOutput(scores),
            "predict": export.PredictOutput(spec.predictions),
        }
        return EstimatorSpec(mode, predictions=spec.predictions, export_outputs=outputs)

    model = Estimator(model_fn, model_dir=trained.model_dir)
    parsing = export.build_parsing_serving_input_receiver_fn(FEATURES)
    raw = export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None, 1], tf.float32)})
    for receiver_fn, names in ((parsing, {"serving_default", "regression", "predict"}), (raw, {"predict"})):
        path = os.fsdecode(model.export_saved_model(str(tmp_path), receiver_fn))
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            signatures = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def
            assert {name for name in signatures if not name.startswith("__")} == names


def test_receivers_wrap_single_tensors_and_name_what_is_wrong():
    with tf.Graph().as_default():
        one = tf.compat.v1.placeholder(tf.string, [None])
        receiver = export.ServingInputReceiver(one, one, {"other": one})
        assert receiver.features == {"feature": one}
        assert receiver.receiver_tensors == {"input": one}
        assert receiver.receiver_tensors_alternatives == {"other": {"input": one}}
        assert export.ServingInputReceiver({1: one}, one).features == {1: one}
        assert export.TensorServingInputReceiver(one, one).features is one
        for arguments, message in [
            ((None, one), "features must be defined"),
            (({"a": 1}, one), "feature a must be a Tensor"),
            (({1.5: one}, one), "strings or ints"),
            ((one, {1: one}), "receiver_tensor keys must be strings"),
            ((one, one, [one]), "must be a dict"),
        ]:
            with pytest.raises(ValueError, match=message):
                export.ServingInputReceiver(*arguments)
        with pytest.raises(ValueError, match="must be a Tensor"):
            export.TensorServingInputReceiver({"a": one}, one)
