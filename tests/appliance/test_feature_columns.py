"""Feature columns: dense features of one value a row take a shorter way to the same numbers."""

import gc
import weakref
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator.crossing import crossed, fingerprint
from appliance.estimator.feature_columns import dense_input, linear_model
from appliance.estimator.feature_inputs import FeatureInputs

fc = tf.feature_column

FEATURES = {
    "word": np.array(["ant", "", "bee", "zebra", "ant"]),
    "color": np.array([["red"], ["blue"], [""], ["red"], ["green"]]),
    "level": np.array([0, -1, 2, 1, -1]),
    "age": np.array([15.0, 25.0, 40.0, 70.0, 30.0], np.float32),
}
MISSING = {"word": "", "color": "", "level": -1}


def as_parsed(features):
    """Return features as `tf.io.parse_example` gives them: categories sparse, without what is missing."""
    parsed = {}
    for key, values in features.items():
        values = values.reshape(len(values), -1)
        if key in MISSING:
            where = np.argwhere(values != MISSING[key])
            parsed[key] = tf.SparseTensor(where, values[tuple(where.T)], values.shape)
        else:
            parsed[key] = tf.constant(values)
    return parsed


def run(build, features=FEATURES, convert=None):
    """Build in a graph with every variable counting 1, 2, 3, ...; return the value and the graph."""
    with tf.Graph().as_default() as graph:
        tensors = convert(features) if convert else {key: tf.constant(v) for key, v in features.items()}
        inputs = FeatureInputs(tensors)
        with tf.compat.v1.variable_scope("m"):
            result = build(inputs)
        with tf.compat.v1.Session() as session:
            session.run([tf.compat.v1.tables_initializer(), tf.compat.v1.global_variables_initializer()])
            for variable in tf.compat.v1.trainable_variables():
                shape = variable.shape.as_list()
                variable.load(1.0 + np.arange(np.prod(shape), dtype=np.float32).reshape(shape), session)
            return session.run(result), graph


def word():
    return fc.categorical_column_with_vocabulary_list("word", ["ant", "bee"])


def level():
    return fc.categorical_column_with_identity("level", 3)


def age_buckets():
    return fc.bucketized_column(fc.numeric_column("age"), [20.0, 35.0])


def words(*vocabulary, **settings):
    return lambda: fc.categorical_column_with_vocabulary_list("word", vocabulary, **settings)


CATEGORICAL = {
    "vocabulary": word,
    "vocabulary_with_oov": words("ant", num_oov_buckets=3),
    "vocabulary_with_default": words("bee", default_value=0),
    "hash": lambda: fc.categorical_column_with_hash_bucket("color", 5),
    "hash_of_integers": lambda: fc.categorical_column_with_hash_bucket("level", 5, tf.int64),
    "identity": level,
    "identity_with_default": lambda: fc.categorical_column_with_identity("level", 2, default_value=1),
    "buckets": age_buckets,
    "cross_of_columns": lambda: fc.crossed_column([word(), level(), age_buckets()], 37),
    "cross_with_key": lambda: fc.crossed_column([level(), age_buckets()], 31, hash_key=9),
}


@pytest.mark.parametrize("name", CATEGORICAL)
def test_dense_and_parsed_features_give_the_same_numbers(name):
    """The way without sparse tensors treats missing values and unknown words as TensorFlow's columns do."""

    def build(inputs):
        linear, _, _ = linear_model(inputs, [CATEGORICAL[name]()], 2)
        with tf.compat.v1.variable_scope("dense"):
            columns = [fc.embedding_column(CATEGORICAL[name](), 3), fc.indicator_column(CATEGORICAL[name]())]
            dense, _ = dense_input(inputs, columns)
        return tf.concat([linear, dense], axis=1)

    short, short_graph = run(build)
    general, general_graph = run(build, convert=as_parsed)
    np.testing.assert_array_equal(short, general)
    if name != "buckets":
        sparse_ways = [
            sum("SparseFillEmptyRows" in op.type for op in graph.get_operations())
            for graph in (short_graph, general_graph)
        ]
        assert sparse_ways[0] == 0 < sparse_ways[1]


def test_cross_of_raw_features_hashes_as_tensorflow_does():
    """TensorFlow hashes raw dense strings as they are, the empty one too."""
    column = fc.crossed_column(["word", "color"], 101)
    here, _ = run(lambda inputs: linear_model(inputs, [column], 1)[0])
    crossed = tf.sparse.cross_hashed(
        [tf.constant(FEATURES["word"].reshape(-1, 1)), tf.constant(FEATURES["color"])], 101
    )
    np.testing.assert_array_equal(here.ravel(), crossed.values.numpy() + 2.0)


@pytest.mark.parametrize("key", [None, 0, 5, 2**63 - 1])
def test_crosses_fall_into_the_buckets_that_tensorflow_gives_them(key):
    """For long and empty strings, negative numbers, and numbers of buckets of all sizes."""
    random = np.random.RandomState(5)
    strings = np.array([b"x" * n + str(n * n).encode() for n in random.randint(0, 90, size=500)])
    strings[:3] = b""
    numbers = random.randint(-(2**62), 2**62, size=500)
    small = random.randint(0, 3, size=500).astype(np.int32)
    for leaves in ([strings, small], [numbers, strings, strings], [small, numbers]):
        parts = [fingerprint(tf.constant(leaf)) for leaf in leaves]
        for buckets in (1, 10, 1000, 2**62):
            here = crossed(parts, buckets, key)
            dense = [tf.constant(leaf.reshape(-1, 1)) for leaf in leaves]
            there = tf.sparse.cross_hashed(dense, buckets, key)
            np.testing.assert_array_equal(here, there.values)


def test_several_values_a_row_are_combined():
    features = {"word": np.array([["ant", "bee"], ["ant", ""], ["", ""]])}
    for combiner, expected in {"sum": [3.0, 1.0, 0.0], "mean": [1.5, 1.0, 0.0]}.items():
        total, _ = run(lambda inputs, c=combiner: linear_model(inputs, [word()], 1, c)[0], features)
        np.testing.assert_allclose(total.ravel() - 1.0, expected)  # The bias is 1.
        column = fc.embedding_column(word(), 1, combiner=combiner)
        embedded, _ = run(lambda inputs, c=column: dense_input(inputs, [c])[0], features)
        np.testing.assert_allclose(embedded.ravel(), expected)


def test_dense_columns_are_concatenated_in_the_order_of_their_names():
    columns = [
        fc.numeric_column("age", normalizer_fn=lambda age: age / 10.0),
        fc.indicator_column(level()),
        age_buckets(),
    ]
    dense, _ = run(lambda inputs: dense_input(inputs, columns)[0])
    assert dense[3].tolist() == [7.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]


def test_linear_model_is_the_sum_of_its_columns_and_the_bias():
    columns = [fc.numeric_column("age"), age_buckets(), fc.embedding_column(level(), 2)]
    logits, graph = run(lambda inputs: linear_model(inputs, columns, 1)[0])
    # Row 3: age 70, third bucket (weight 3), embedding (3, 4) of level 1 with weights 1 and 2, bias 1.
    assert logits[3].tolist() == [70.0 + 3.0 + 3.0 * 1 + 4.0 * 2 + 1.0]
    names = {variable.op.name for variable in graph.get_collection("trainable_variables")}
    assert names == {
        "m/age/weights",
        "m/age_bucketized/weights",
        "m/level_embedding/embedding_weights",
        "m/level_embedding/weights",
        "m/bias_weights",
    }


def test_parts_of_a_model_share_transformations_and_tables():
    hashed = fc.categorical_column_with_hash_bucket("color", 5)

    def build(inputs):
        crosses = [fc.crossed_column([word(), "color"], 7), fc.crossed_column(["color", age_buckets()], 7)]
        linear_model(inputs, [hashed, word(), *crosses], 1)
        dense_input(inputs, [fc.embedding_column(hashed, 2), fc.indicator_column(word())])
        return tf.constant(0)

    _, graph = run(build)
    counts = Counter(op.type for op in graph.get_operations())
    # One for the column, and two for the string's fingerprint, which both crosses use.
    assert counts["StringToHashBucketFast"] == 1 + 2
    assert counts["SparseCross"] == 0
    assert counts["HashTableV2"] == counts["LookupTableFindV2"] == 1


def test_embeddings_and_linear_weights_get_sparse_gradients():
    def build(inputs):
        logits, _, weights = linear_model(inputs, [word()], 1)
        with tf.compat.v1.variable_scope("dense"):
            dense, embeddings = dense_input(inputs, [fc.embedding_column(word(), 2)])
        gradients = tf.gradients(tf.reduce_sum(logits) + tf.reduce_sum(dense), weights + embeddings)
        assert [type(gradient) for gradient in gradients] == [tf.IndexedSlices] * 2
        return tf.constant(0)

    run(build)


def test_gradients_while_training_are_those_of_tensorflow():
    """Ids that repeat, a missing one, one outside the vocabulary, and a bucket, for rows of one and of
    several numbers."""
    words = fc.categorical_column_with_vocabulary_list("word", ["a", "b", "c"])
    buckets = fc.bucketized_column(fc.numeric_column("x"), [0.0, 1.0])
    features = {"word": [["b"], ["a"], ["b"], [""], ["z"]], "x": [[2.0], [-1.0], [0.5], [2.0], [-3.0]]}
    found = []
    for training in (False, True):
        with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
            tf.compat.v1.set_random_seed(3)
            inputs = FeatureInputs(
                {name: tf.constant(value) for name, value in features.items()}, training=training
            )
            with tf.compat.v1.variable_scope("dnn"):
                dense, variables = dense_input(
                    inputs, [fc.embedding_column(words, 3), fc.embedding_column(buckets, 2)]
                )
            with tf.compat.v1.variable_scope("linear"):
                logits, _, others = linear_model(inputs, [words, buckets], units=2)
            loss = tf.reduce_sum(tf.sin(logits + tf.range(2.0))) + tf.reduce_sum(dense**3)
            gradients = tf.gradients(loss, [*variables, *others])
            assert all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
            session.run([tf.compat.v1.global_variables_initializer(), tf.compat.v1.tables_initializer()])
            found.append(
                (
                    session.run([tf.convert_to_tensor(gradient) for gradient in gradients]),
                    len(graph.get_operations()),
                )
            )
    (expected, before), (gradients, after) = found
    assert len(gradients) == 4
    assert after < before
    for ours, theirs in zip(gradients, expected, strict=True):
        assert np.any(theirs)
        np.testing.assert_array_equal(ours, theirs)


def test_shared_embeddings_are_one_trained_variable_and_keep_no_graph_alive():
    features = {"query": np.array(["a", "b"]), "page": np.array(["b", "c"])}
    keys = [fc.categorical_column_with_vocabulary_list(key, ["a", "b", "c"]) for key in features]
    with tf.Graph().as_default():  # TensorFlow makes these columns in graphs only.
        columns = fc.shared_embeddings(keys, dimension=2)
    found = []

    def build(inputs):
        dense, variables = dense_input(inputs, columns)
        found.extend(variable.op.name for variable in variables)
        return dense

    dense, graph = run(build, features)
    # Sorted by name: page before query.
    assert dense.tolist() == [[3.0, 4.0, 1.0, 2.0], [5.0, 6.0, 3.0, 4.0]]
    assert set(found) == {"page_query_shared_embedding"}
    assert len(graph.get_collection("trainable_variables")) == 1
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None


REFUSED = {
    "missing feature": (
        lambda: [fc.numeric_column("height")],
        r"'height' reads the feature 'height', which is not among the features given: \['age', 'color',",
    ),
    "missing part of a cross": (
        lambda: [fc.embedding_column(fc.crossed_column(["word", "shape"], 5), 2)],
        "reads the feature 'shape'",
    ),
    "string for a number": (
        lambda: [fc.numeric_column("word")],
        "Feature 'word' has dtype string, which does not fit the feature column 'word'",
    ),
    "number for a category": (
        lambda: [fc.indicator_column(fc.categorical_column_with_hash_bucket("age", 5))],
        "Feature 'age' has dtype float32.*bucketized_column",
    ),
    "integer for strings": (
        lambda: [fc.indicator_column(fc.categorical_column_with_vocabulary_list("level", ["a"]))],
        "Feature 'level' has dtype int64.*expecting string.*dtype=tf.int64",
    ),
    "wrong shape": (lambda: [fc.numeric_column("age", shape=(2,))], r"'age' expects 2 values an example"),
    "categorical": (lambda: [word()], "'word' is a VocabularyListCategoricalColumn. Wrap it in"),
    "twice": (lambda: [age_buckets(), age_buckets()], "two columns named 'age_bucketized'"),
    "none": (list, "feature_columns is empty"),
    "no column": (lambda: ["age"], "must be feature columns.*got 'age' of type str"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_columns_and_features_are_refused(case):
    columns, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        run(lambda inputs: dense_input(inputs, columns())[0])


def test_features_must_be_a_dict():
    with pytest.raises(ValueError, match=r"features should be a dict.*got ndarray"):
        FeatureInputs(np.zeros(3))


def test_id_outside_an_identity_column_names_the_column_at_run_time():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)level/weighted_sum.* 7 is not in"):
        run(lambda inputs: linear_model(inputs, [level()], 1)[0], {"level": np.array([0, 7])})
