"""Warm start: which variables get their first values from another checkpoint, and when."""

import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator import (
    DNNClassifier,
    Estimator,
    LinearRegressor,
    RunConfig,
    VocabInfo,
    WarmStartSettings,
    export,
)
from appliance.estimator.add_metrics import add_metrics
from tests.appliance.models import line, linear_model_fn


def config(model_dir):
    return RunConfig(model_dir=str(model_dir), tf_random_seed=1)


def trained(model_dir):
    """An estimator with weight and bias trained for five steps."""
    return Estimator(linear_model_fn, config=config(model_dir), params={}).train(line(repeat=None), steps=5)


def warmed(model_dir, source, rate=1e-12):
    return Estimator(
        linear_model_fn, config=config(model_dir), params={"learning_rate": rate}, warm_start_from=source
    )


def values(estimator):
    return {name: estimator.get_variable_value(name) for name in ("weight", "bias")}


def receiver_fn():
    return export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None, 1], tf.float32)})()


def test_every_kind_of_path_starts_the_trainable_variables(tmp_path):
    """A checkpoint, a model_dir and a SavedModel; the step starts at zero; a second training goes on."""
    source = trained(tmp_path / "source")
    exported = source.export_saved_model(tmp_path / "exported", receiver_fn)
    for number, path in enumerate((source.latest_checkpoint(), source.model_dir, exported)):
        estimator = warmed(tmp_path / str(number), path).train(line(), steps=1)
        np.testing.assert_allclose(values(estimator)["weight"], values(source)["weight"], rtol=1e-6)
        np.testing.assert_allclose(values(estimator)["bias"], values(source)["bias"], rtol=1e-6)
        assert estimator.get_variable_value("global_step") == 1
    far = warmed(tmp_path / "0", source.model_dir, rate=0.1).train(line(), steps=1)
    again = warmed(tmp_path / "0", source.model_dir).train(line(), steps=1)
    assert not np.allclose(values(far)["weight"], values(source)["weight"])
    np.testing.assert_array_equal(values(again)["weight"], values(far)["weight"])


def test_without_a_checkpoint_of_its_own_every_verb_uses_the_warm_start(tmp_path):
    source = trained(tmp_path / "source")
    estimator = warmed(tmp_path / "new", source.model_dir)
    expected = source.evaluate(line())
    assert estimator.evaluate(line()) == {**expected, "global_step": 0}
    assert add_metrics(estimator, lambda labels: {}).evaluate(line())["mae"] == expected["mae"]
    ours, theirs = next(estimator.predict(line())), next(source.predict(line()))
    np.testing.assert_array_equal(ours["y"], theirs["y"])
    assert estimator.export_saved_model(tmp_path / "exported", receiver_fn)


def test_settings_choose_and_rename_variables(tmp_path):
    source = trained(tmp_path / "source")
    only = WarmStartSettings(source.model_dir, vars_to_warm_start="weigh.")
    estimator = warmed(tmp_path / "only", only).train(line(), steps=1)
    np.testing.assert_allclose(values(estimator)["weight"], values(source)["weight"])
    np.testing.assert_allclose(values(estimator)["bias"], [0], atol=1e-9)
    none = WarmStartSettings(source.model_dir, vars_to_warm_start=None)
    estimator = warmed(tmp_path / "none", none).train(line(), steps=1)
    np.testing.assert_allclose(values(estimator)["weight"], [[0]], atol=1e-9)
    listed = WarmStartSettings(source.model_dir, vars_to_warm_start=["bias", "global_step"])
    estimator = warmed(tmp_path / "listed", listed).train(line(), steps=1)
    assert estimator.get_variable_value("global_step") == 6

    def renamed_model_fn(features, labels, mode):
        with tf.compat.v1.variable_scope("inner"):
            return linear_model_fn(features, labels, mode, {"learning_rate": 1e-12})

    names = {"inner/weight": "weight", "inner/bias": "bias"}
    settings = WarmStartSettings(source.model_dir, var_name_to_prev_var_name=names)
    inner = Estimator(renamed_model_fn, config=config(tmp_path / "inner"), warm_start_from=settings)
    assert inner.evaluate(line())["mae"] == source.evaluate(line())["mae"]


def test_a_new_vocabulary_moves_rows_and_fills_new_ones(tmp_path):
    """Rows follow their words; new words and buckets for unknown ones come from the backup initializer."""
    for name, words in (("old", "ant bee cat"), ("new", "cat dog ant")):
        (tmp_path / name).write_text("\n".join(words.split()))
    old, new = str(tmp_path / "old"), str(tmp_path / "new")

    def make(folder, vocabulary, rate, **options):
        column = tf.feature_column.categorical_column_with_vocabulary_file("word", vocabulary, 3)
        return LinearRegressor(
            [column],
            optimizer=tf.compat.v1.train.GradientDescentOptimizer(rate),
            config=config(tmp_path / folder),
            **options,
        )

    def words():
        labels = np.array([[1], [2], [3]], np.float32)
        return tf.data.Dataset.from_tensors(({"word": [["ant"], ["bee"], ["cat"]]}, labels))

    name = "linear/linear_model/word/weights"
    before = make("a", old, 0.1).train(words).get_variable_value(name).ravel()
    assert len(set(before)) == 3
    vocabulary = VocabInfo(
        new, 3, 0, old, backup_initializer=tf.compat.v1.random_uniform_initializer(7.0, 7.01)
    )
    settings = WarmStartSettings(str(tmp_path / "a"), var_name_to_vocab_info={name: vocabulary})
    after = make("b", new, 1e-12, warm_start_from=settings).train(words).get_variable_value(name).ravel()
    np.testing.assert_allclose(after[[0, 2]], before[[2, 0]], rtol=1e-6)
    assert 7.0 <= after[1] <= 7.01


def test_a_canned_model_takes_over_the_state_of_its_optimizer_when_listed(tmp_path):
    columns = [tf.feature_column.numeric_column("x")]

    def data():
        x = np.linspace(-1, 1, 8, dtype=np.float32)
        return tf.data.Dataset.from_tensors(({"x": x}, (x > 0).astype(np.int64)))

    def make(folder, source=None):
        return DNNClassifier([3], columns, config=config(tmp_path / folder), warm_start_from=source)

    source = make("a").train(data)
    slot = "training/Adagrad/dnn/logits/kernel/accumulator"
    # An accumulator starts at 0.1 and grows with every step.
    before = source.get_variable_value(slot)
    assert np.all(before > 0.1)
    after = {}
    for folder, wanted in (("weights", "dnn.*"), ("all", ["dnn", "training"])):
        settings = WarmStartSettings(source.latest_checkpoint(), vars_to_warm_start=wanted)
        after[folder] = make(folder, settings).train(data).get_variable_value(slot)
    assert np.all(after["all"] > before)
    np.testing.assert_allclose(after["all"] - before, after["weights"] - 0.1, rtol=1e-4)


def test_misfits_are_told_at_once_and_by_name(tmp_path):
    source = trained(tmp_path / "source")

    def other_model_fn(features, labels, mode):
        tf.compat.v1.get_variable("weight", [2, 1])
        with tf.compat.v1.variable_scope("more"):
            return linear_model_fn(features, labels, mode, {})

    other = Estimator(other_model_fn, config=config(tmp_path / "new"), warm_start_from=source.model_dir)
    message = (
        r"Cannot warm-start from .*: weight: \(2, 1\) here, \[1, 1\] as weight there; more/weight: the "
        r"checkpoint has no more/weight.* The checkpoint has: bias \[1\], global_step \[\], weight \[1, 1\]"
    )
    with pytest.raises(ValueError, match=message):
        other.train(line(), steps=1)
    with pytest.raises(ValueError, match=r"Couldn't find a checkpoint to warm-start from at .*nowhere"):
        warmed(tmp_path / "new", str(tmp_path / "nowhere")).train(line(), steps=1)
    with pytest.raises(ValueError, match=r"must be a string or a WarmStartSettings, instead got .*int"):
        warmed(tmp_path / "new", 3)
    with pytest.raises(ValueError, match="`ckpt_to_initialize_from` MUST be set"):
        WarmStartSettings("")
    unused = WarmStartSettings(source.model_dir, var_name_to_prev_var_name={"nobody": "weight"})
    with pytest.raises(ValueError, match=r"not used: {'nobody'}"):
        warmed(tmp_path / "new", unused).train(line(), steps=1)
