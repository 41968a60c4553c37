"""What models of today are made of: Keras exports, tables with assets, strings, shapes that vary."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf

from serving.errors import ModelFailed
from serving.servable import Servable
from tests.serving.saved_models import DTYPES


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servable]:
    """Sentences to the numbers of their words, by a table in an asset: ragged inside, filled up outside."""
    folder = tmp_path_factory.mktemp("words")
    vocabulary = folder / "vocabulary.txt"
    vocabulary.write_text("red\ngreen\nblau\u00e4\n")

    class Words(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            initializer = tf.lookup.TextFileInitializer(
                str(vocabulary),
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            )
            self.table = tf.lookup.StaticVocabularyTable(initializer, num_oov_buckets=1)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
        def __call__(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
            split = tf.strings.split(text)
            numbers = tf.ragged.map_flat_values(self.table.lookup, split)
            return {
                "numbers": numbers.to_tensor(default_value=-1),
                "lengths": split.row_lengths(),
                "joined": tf.strings.reduce_join(split, axis=-1, separator="+"),
            }

    model = Words()
    tf.saved_model.save(model, str(folder / "model"), signatures=model.__call__)
    vocabulary.unlink()  # The model has to find its own copy.
    servable = Servable.load(folder / "model")
    yield servable
    servable.close()


@pytest.mark.parametrize(
    ("sentences", "numbers", "lengths"),
    [
        (["red green", "blau\u00e4", "no red no"], [[0, 1, -1], [2, -1, -1], [3, 0, 3]], [2, 1, 3]),
        ([""], [[]], [0]),
        ([], [], []),
    ],
)
def test_strings_tables_and_ragged_values_of_any_length(
    words: Servable, sentences: list[str], numbers: list[list[int]], lengths: list[int]
) -> None:
    text = np.empty(len(sentences), object)
    text[:] = [sentence.encode() for sentence in sentences]
    outputs = words.run("serving_default", {"text": text})
    assert outputs["numbers"].tolist() == numbers
    assert outputs["lengths"].tolist() == lengths
    assert outputs["joined"].tolist() == [b"+".join(sentence.encode().split()) for sentence in sentences]


def test_a_keras_export_answers_as_the_model_does_in_keras(tmp_path: Path) -> None:
    """For inputs by name, and images of more than one size."""
    keras.utils.set_random_seed(1)
    image, flags = keras.Input((None, None, 1), name="image"), keras.Input((2,), name="flags")
    seen = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(3, 2)(image))
    together = keras.layers.Concatenate()([keras.layers.BatchNormalization()(seen), flags])
    model = keras.Model({"image": image, "flags": flags}, {"score": keras.layers.Dense(2)(together)})
    model.export(str(tmp_path / "model"), verbose=False)
    servable = Servable.load(tmp_path / "model")
    generator = np.random.default_rng(1)
    for size in ((2, 4, 4, 1), (3, 7, 5, 1)):
        inputs = {
            "image": generator.normal(size=size).astype(np.float32),
            "flags": generator.normal(size=(size[0], 2)).astype(np.float32),
        }
        answer = servable.run("serving_default", inputs)["score"]
        expected = model(inputs, training=False)["score"].numpy()
        np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)
    servable.close()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_dtype_goes_through_a_model(made_kinds: Servable, dtype: tf.DType) -> None:
    value = (
        np.array([[b"a\xff", b""]], object) if dtype == tf.string else np.ones((1, 2), dtype.as_numpy_dtype)
    )
    echo = made_kinds.run(dtype.name, {"x": value})["y"]
    assert echo.dtype == value.dtype
    assert echo.tolist() == value.tolist()


@pytest.fixture(scope="module")
def made_kinds(made: Path) -> Iterator[Servable]:
    servable = Servable.load(made / "kinds")
    yield servable
    servable.close()


def test_an_assertion_of_the_graph_is_the_clients_error(tmp_path: Path) -> None:
    class Checked(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            tf.debugging.assert_non_negative(x, "ages are not negative")
            return {"y": tf.sqrt(x)}

    model = Checked()
    tf.saved_model.save(model, str(tmp_path / "model"), signatures=model.__call__)
    servable = Servable.load(tmp_path / "model")
    with pytest.raises(ModelFailed, match="ages are not negative") as error:
        servable.run("serving_default", {"x": np.array([-1.0], np.float32)})
    assert error.value.code.name == "INVALID_ARGUMENT"
    servable.close()


def test_unloading_gives_memory_back(tmp_path: Path) -> None:
    """A model of 64 MiB, loaded and unloaded six times, does not leave them behind."""

    class Large(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = tf.Variable(tf.random.normal([4096, 4096]))

        @tf.function(input_signature=[tf.TensorSpec([None, 4096], tf.float32, name="x")])
        def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": x @ self.weights}

    model = Large()
    tf.saved_model.save(model, str(tmp_path / "model"), signatures=model.__call__)
    del model

    def memory_after_one_life() -> int:
        servable = Servable.load(tmp_path / "model")
        servable.run("serving_default", {"x": np.ones((1, 4096), np.float32)})
        servable.close()
        del servable
        gc.collect()
        return psutil.Process().memory_info().rss

    first = memory_after_one_life()
    last = [memory_after_one_life() for _ in range(5)][-1]
    assert last - first < 3 * 64 * 2**20
