"""input_fns over arrays and data frames in memory."""

import json

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from appliance.estimator import Estimator, EstimatorSpec, ModeKeys, RunConfig, inputs
from appliance.estimator.input_graph import build_inputs, input_share
from tests.appliance.models import linear_model_fn


def batches_of(input_fn, limit=None, seed=None, context=None):
    """Return the batches that a graph takes from an input_fn: (features, labels) pairs."""
    taken = []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(seed)
        made = build_inputs(input_fn, {} if context is None else {"input_context": context})
        session.run(made.initializer)
        wanted = made.features if made.labels is None else (made.features, made.labels)
        while limit is None or len(taken) < limit:
            try:
                taken.append(session.run(wanted))
            except tf.errors.OutOfRangeError:
                break
    return taken


def test_batches_straddle_epochs_and_the_last_may_be_smaller():
    x = {"a": np.arange(4), "b": np.arange(32, 36)}
    taken = batches_of(
        inputs.numpy_input_fn(x, np.arange(-32, -28), batch_size=3, shuffle=False, num_epochs=2)
    )
    assert [features["a"].tolist() for features, _ in taken] == [[0, 1, 2], [3, 0, 1], [2, 3]]
    assert [features["b"].tolist() for features, _ in taken] == [[32, 33, 34], [35, 32, 33], [34, 35]]
    assert [labels.tolist() for _, labels in taken] == [[-32, -31, -30], [-29, -32, -31], [-30, -29]]


def test_without_num_epochs_the_data_is_endless():
    taken = batches_of(inputs.numpy_input_fn(np.arange(3), batch_size=2, shuffle=False, num_epochs=None), 40)
    assert np.concatenate(taken).tolist() == [i % 3 for i in range(80)]


def test_each_epoch_has_its_own_complete_order():
    count = 50_000
    taken = batches_of(inputs.numpy_input_fn(np.arange(count), batch_size=10_000, shuffle=True, num_epochs=2))
    first, second = np.concatenate(taken).reshape(2, count)
    assert sorted(first) == sorted(second) == list(range(count))
    assert (first != second).mean() > 0.99
    # Rows come from everywhere, from the first batch on.
    assert abs(taken[0].mean() / count - 0.5) < 0.02


def test_the_order_follows_the_seed_of_the_graph():
    input_fn = inputs.numpy_input_fn(np.arange(100), batch_size=100, shuffle=True)
    (one,), (same,), (other,) = (batches_of(input_fn, seed=seed) for seed in (1, 1, 2))
    assert one.tolist() == same.tolist() != other.tolist()


def test_x_may_be_one_array_and_y_a_dict():
    input_fn = inputs.numpy_input_fn(np.ones([4, 2]), {"u": np.zeros(4), "v": np.ones(4)}, shuffle=False)
    ((features, labels),) = batches_of(input_fn)
    assert features.shape == (4, 2)
    assert sorted(labels) == ["u", "v"]


def test_the_dicts_of_the_caller_stay_as_they_are():
    x, y = {"b": np.arange(3), "a": np.arange(3)}, {"y": np.arange(3)}
    batches_of(inputs.numpy_input_fn(x, y, shuffle=False))
    assert list(x) == ["b", "a"]
    assert list(y) == ["y"]


def test_strings_and_truth_values_keep_their_kind():
    x = {"object": np.array(["ä", b"b"], dtype=object), "unicode": np.array(["c", "d"])}
    x |= {"bytes": np.array([b"e", b"f"]), "bool": np.array([True, False]), "half": np.ones(2, np.float16)}
    (features,) = batches_of(inputs.numpy_input_fn(x, shuffle=False))
    assert features["object"].tolist() == ["ä".encode(), b"b"]
    assert features["unicode"].tolist() == [b"c", b"d"]
    assert features["bytes"].tolist() == [b"e", b"f"]
    assert features["bool"].dtype == bool
    assert features["half"].dtype == np.float16


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"x": np.ones(3)}, ValueError, "shuffle must be provided"),
        ({"x": np.ones(3), "shuffle": "no"}, ValueError, "shuffle must be provided"),
        ({"x": {}, "shuffle": True}, ValueError, "x cannot be an empty dict"),
        ({"x": np.ones(3), "y": {}, "shuffle": True}, ValueError, "use None instead"),
        ({"x": [1, 2], "shuffle": True}, TypeError, "x must be a dict or array; got list"),
        ({"x": {"a": np.ones(3)}, "y": np.ones(4), "shuffle": True}, ValueError, r"mismatched.*'y': 4"),
        (
            {"x": {"a": np.ones(3)}, "y": {"a": np.ones(3)}, "shuffle": True},
            ValueError,
            "duplicate keys.*'a'",
        ),
        ({"x": np.ones(3), "shuffle": True, "batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"x": np.ones(0), "shuffle": True}, ValueError, "no rows"),
        ({"x": np.float32(1), "shuffle": True}, ValueError, "one entry a row"),
        ({"x": {"a": np.array(["u", None])}, "shuffle": True}, ValueError, "'a' holds strings and also None"),
        ({"x": {"a": np.array(["u", 1.5], object)}, "shuffle": True}, ValueError, "'a' holds strings.*1.5"),
        (
            {"x": {"a": np.array(["2026-01-01"], "M8[D]")}, "shuffle": True},
            ValueError,
            "'a' has the dtype dat",
        ),
    ],
)
def test_bad_arrays_are_refused_when_the_input_fn_is_made(arguments, error, message):
    with pytest.raises(error, match=message):
        inputs.numpy_input_fn(**arguments)


def test_workers_share_the_rows():
    input_fn = inputs.numpy_input_fn(np.arange(10), batch_size=4, shuffle=True)
    shares = [
        np.concatenate(batches_of(input_fn, context=tf.distribute.InputContext(3, worker)))
        for worker in range(3)
    ]
    assert sorted(np.concatenate(shares)) == list(range(10))
    assert max(map(len, shares)) == 4


def test_workers_of_a_cluster_are_told_their_share(monkeypatch):
    assert input_share(RunConfig()) is None
    shares = []
    for kind, index in (("chief", 0), ("worker", 0), ("worker", 1)):
        cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
        task = {"type": kind, "index": index}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
        context = input_share(RunConfig())
        assert context.num_input_pipelines == 3
        shares.append(context.input_pipeline_id)
    assert shares == [0, 1, 2]


def test_an_input_fn_on_one_machine_gets_no_context(tmp_path):
    given = []

    def input_fn(input_context):
        given.append(input_context)
        return {"x": tf.constant([[1.0]])}, tf.constant([[3.0]])

    model = Estimator(linear_model_fn, config=RunConfig(str(tmp_path)))
    model.train(input_fn, steps=1)
    model.evaluate(input_fn, steps=1)
    assert given == [None, None]


def test_an_estimator_trains_evaluates_and_predicts_on_arrays(tmp_path):
    x = np.linspace(0, 1, 8, dtype=np.float32)[:, None]
    model = Estimator(linear_model_fn, config=RunConfig(str(tmp_path)))
    model.train(
        inputs.numpy_input_fn({"x": x}, 3 * x, batch_size=4, num_epochs=None, shuffle=True), steps=200
    )
    assert model.evaluate(inputs.numpy_input_fn({"x": x}, 3 * x, shuffle=False))["mae"] < 0.2
    assert len(list(model.predict(inputs.numpy_input_fn({"x": x}, batch_size=3, shuffle=False)))) == 8


def test_large_arrays_are_not_in_the_graph(tmp_path):
    sizes = []

    def model_fn(features, labels, mode):
        sizes.append(len(tf.compat.v1.get_default_graph().as_graph_def().SerializeToString()))
        return EstimatorSpec(ModeKeys.PREDICT, predictions=tf.reduce_sum(features, axis=1))

    x = np.ones([200_000, 20])
    model = Estimator(model_fn, str(tmp_path))
    assert next(model.predict(inputs.numpy_input_fn(x, shuffle=True))) == 20
    assert sizes[0] < 20_000


def test_an_input_fn_serves_eager_code_too():
    dataset = inputs.numpy_input_fn({"a": np.arange(5)}, np.arange(5), batch_size=2, shuffle=False)()
    assert [labels.numpy().tolist() for _, labels in dataset] == [[0, 1], [2, 3], [4]]


def test_the_index_of_a_data_frame_is_not_a_feature():
    x = pd.DataFrame({"a": [1.5, 2.5], "b": ["u", "v"]}, index=[7, 9])
    y = pd.Series([0, 1], index=[7, 9])
    ((features, labels),) = batches_of(inputs.pandas_input_fn(x, y, shuffle=False))
    assert features["a"].tolist() == [1.5, 2.5]
    assert features["b"].tolist() == [b"u", b"v"]
    assert sorted(features) == ["a", "b"]
    assert labels.tolist() == [0, 1]


def test_labels_in_a_data_frame_become_a_dict():
    x, y = pd.DataFrame({"a": [1, 2]}), pd.DataFrame({"u": [3, 4], "v": [5, 6]})
    ((_, labels),) = batches_of(inputs.pandas_input_fn(x, y, shuffle=False))
    assert {name: values.tolist() for name, values in labels.items()} == {"u": [3, 4], "v": [5, 6]}


def test_bad_data_frames_are_refused():
    x = pd.DataFrame({"a": [1, 2]})
    with pytest.raises(ValueError, match="Index for x and y are mismatched"):
        inputs.pandas_input_fn(x, pd.Series([1, 2], index=[5, 6]), shuffle=True)
    with pytest.raises(ValueError, match="Cannot use name a for target column"):
        inputs.pandas_input_fn(x, pd.Series([1, 2]), shuffle=True, target_column="a")
    with pytest.raises(TypeError, match="DataFrame"):
        inputs.pandas_input_fn({"a": [1]}, shuffle=True)
    with pytest.raises(ValueError, match="shuffle must be provided"):
        inputs.pandas_input_fn(x)
    with pytest.raises(ValueError, match="'b' holds strings and also"):
        inputs.pandas_input_fn(pd.DataFrame({"b": ["u", None]}), shuffle=True)
