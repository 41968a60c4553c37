"""Small SavedModels made by code, for the tests of serving."""

from __future__ import annotations

import shutil
from pathlib import Path

import tensorflow as tf

v1 = tf.compat.v1

CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"
PREDICT = "tensorflow/serving/predict"

FLOATS = (tf.float32, tf.float64, tf.float16, tf.bfloat16)
INTEGERS = (tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.int64, tf.uint32, tf.uint64)
DTYPES = (*FLOATS, *INTEGERS, tf.bool, tf.string, tf.complex64, tf.complex128)


def half_plus(path: Path, bias: float = 2.0) -> Path:
    """x / 2 + bias, as TensorFlow Serving's half_plus_two: `x:0` is the parser's output, not a
    placeholder."""
    with tf.Graph().as_default(), v1.Session() as session:
        half = v1.get_variable("a", initializer=0.5)
        added = v1.get_variable("b", initializer=bias)
        serialized = v1.placeholder(tf.string, name="tf_example")
        feature = v1.io.FixedLenFeature([1], tf.float32)
        x = tf.identity(v1.io.parse_example(serialized, {"x": feature})["x"], name="x")
        y = tf.add(tf.multiply(half, x), added, name="y")
        labels = tf.fill(tf.shape(y), "positive")
        session.run(v1.global_variables_initializer())
        info = v1.saved_model.build_tensor_info
        signature = v1.saved_model.build_signature_def
        _save(
            session,
            path,
            {
                "serving_default": signature({"x": info(x)}, {"y": info(y)}, PREDICT),
                "regress": signature({"inputs": info(serialized)}, {"outputs": info(y)}, REGRESS),
                "classify": signature(
                    {"inputs": info(serialized)}, {"classes": info(labels), "scores": info(y)}, CLASSIFY
                ),
                "scores_only": signature({"inputs": info(serialized)}, {"scores": info(y)}, CLASSIFY),
            },
        )
    return path


def kinds(path: Path) -> Path:
    """Signatures that echo one tensor of each dtype, take several inputs, or give awkward outputs."""
    with tf.Graph().as_default(), v1.Session() as session:
        signatures = {}
        info = v1.saved_model.build_tensor_info
        build = v1.saved_model.build_signature_def
        for dtype in DTYPES:
            value = v1.placeholder(dtype, name=f"in_{dtype.name}")
            signatures[dtype.name] = build({"x": info(value)}, {"y": info(tf.identity(value))}, PREDICT)
        a = v1.placeholder(tf.float32, [None, 2], name="a")
        b = v1.placeholder(tf.int64, [None], name="b")
        outputs = {
            "sum": info(tf.reduce_sum(a, axis=1) + tf.cast(b, tf.float32)),
            "twice": info(b * 2),
            "raw_bytes": info(tf.as_string(b)),
            "text": info(tf.as_string(b)),
        }
        signatures["two"] = build({"a": info(a), "b": info(b)}, outputs, PREDICT)
        signatures["scalar"] = build({"a": info(a)}, {"total": info(tf.reduce_sum(a))}, PREDICT)
        signatures["uneven"] = build({"a": info(a)}, {"p": info(a), "q": info(a[:1])}, PREDICT)
        signatures["passed"] = build({"a": info(a)}, {"a": info(a), "b": info(a + 1.0)}, PREDICT)
        session.run(v1.global_variables_initializer())
        _save(session, path, signatures)
    return path


def modern(path: Path) -> Path:
    """A tf.Module with a tf.function signature and a variable: x @ ones + 1, for x of [batch, 2]."""

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = tf.Variable(tf.ones([2, 1]))

        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
        def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": x @ self.weights + 1.0}

    model = Model()
    tf.saved_model.save(model, str(path), signatures=model.__call__)
    return path


def table(path: Path) -> Path:
    """A lookup table read from an asset: colours to numbers, -1 for others; it needs the initializer to have
    run."""
    vocabulary = path.parent / f"{path.name}.txt"
    vocabulary.write_text("red\ngreen\nblue\n")
    with tf.Graph().as_default(), v1.Session() as session:
        words = v1.placeholder(tf.string, [None], name="words")
        asset = tf.constant(str(vocabulary))
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, asset)
        initializer = tf.lookup.TextFileInitializer(
            asset,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        )
        numbers = tf.lookup.StaticHashTable(initializer, -1).lookup(words)
        session.run(v1.tables_initializer())
        info = v1.saved_model.build_tensor_info
        signature = v1.saved_model.build_signature_def(
            {"words": info(words)}, {"numbers": info(numbers)}, PREDICT
        )
        _save(session, path, {"serving_default": signature}, tables=True)
    vocabulary.unlink()
    return path


def slow(path: Path) -> Path:
    """Counts to `x` times 300,000, one op at a time: `x` is roughly seconds on a busy machine."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [], name="seconds")
        # A loop that counts: no sleeping op can be saved.
        rounds = tf.cast(x * 3e5, tf.int32)
        counted = v1.while_loop(lambda i: i < rounds, lambda i: i + 1, [tf.constant(0)], back_prop=False)
        info = v1.saved_model.build_tensor_info
        signature = v1.saved_model.build_signature_def({"x": info(x)}, {"y": info(counted)}, PREDICT)
        _save(session, path, {"serving_default": signature})
    return path


def copy_version(source: Path, base: Path, number: int) -> Path:
    """Put a saved model into a base path as a version, whole at once."""
    base.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, base / f"copying-{number}")
    return (base / f"copying-{number}").rename(base / str(number))


def corrupt_version(base: Path, number: int) -> Path:
    """Put a version into a base path whose saved_model.pb is rubbish."""
    path = base / f"copying-{number}"
    path.mkdir(parents=True)
    (path / "saved_model.pb").write_bytes(b"this is no SavedModel")
    return path.rename(base / str(number))


def _save(session: v1.Session, path: Path, signatures: dict[str, object], *, tables: bool = False) -> None:
    builder = v1.saved_model.Builder(str(path))
    builder.add_meta_graph_and_variables(
        session,
        ["serve"],
        signature_def_map=signatures,
        assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
        main_op=v1.tables_initializer() if tables else None,
    )
    builder.save()
