"""The reader of SavedModels, held against TensorFlow's own reading of the same files."""

import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from registry import Registry
from registry.errors import InvalidSavedModel
from registry.signatures import read_saved_model, read_signatures


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel with shapes of every kind, several signatures, variables, and two graphs."""
    import tensorflow as tf

    v1, directory = tf.compat.v1, tmp_path_factory.mktemp("exports") / "model"
    builder = v1.saved_model.Builder(str(directory))
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("weights", [4, 2])
        dense = v1.placeholder(tf.float32, [None, 4], name="dense")
        anything = v1.placeholder(tf.string, name="anything")
        scalar = v1.placeholder_with_default(tf.constant(3, tf.int64), [], name="scalar")
        sparse = v1.sparse_placeholder(tf.int32, [None, 7], name="sparse")
        scores = tf.matmul(dense, weights)
        info = v1.saved_model.build_tensor_info
        predict = v1.saved_model.build_signature_def(
            {"dense": info(dense), "scalar": info(scalar)},
            {"scores": info(scores), "half": info(tf.cast(scores, tf.float16))},
            "tensorflow/serving/predict",
        )
        odd = v1.saved_model.build_signature_def(
            {"anything": info(anything), "sparse": info(sparse)},
            {"long": info(v1.identity(anything, name="x" * 300))},
            "tensorflow/serving/predict",
        )
        odd.defaults["anything"].CopyFrom(tf.make_tensor_proto("?"))
        session.run(v1.global_variables_initializer())
        signatures = {"serving_default": predict, "odd": odd}
        builder.add_meta_graph_and_variables(session, ["train"], {})
    with tf.Graph().as_default(), v1.Session() as session:
        v1.import_graph_def(tf.compat.v1.GraphDef())
        builder._saved_model.meta_graphs.add().CopyFrom(builder._saved_model.meta_graphs[0])
        served = builder._saved_model.meta_graphs[1]
        del served.meta_info_def.tags[:]
        served.meta_info_def.tags.extend(["gpu", "serve"])
        for name, signature in signatures.items():
            served.signature_def[name].CopyFrom(signature)
        served.signature_def["__saved_model_init_op"].CopyFrom(predict)
    builder.save()
    return directory


def as_tensorflow_reads(directory: Path) -> dict[str, Any]:
    import tensorflow as tf
    from tensorflow.python.saved_model.loader_impl import parse_saved_model

    graphs = parse_saved_model(str(directory)).meta_graphs
    graph = next(graph for graph in graphs if "serve" in graph.meta_info_def.tags)

    def tensors(infos: Any) -> dict[str, Any]:
        return {
            alias: {
                "dtype": tf.as_dtype(info.dtype).name,
                "shape": None
                if info.tensor_shape.unknown_rank
                else [None if dim.size < 0 else dim.size for dim in info.tensor_shape.dim],
            }
            for alias, info in infos.items()
        }

    return {
        name: {
            "method_name": signature.method_name,
            "inputs": tensors(signature.inputs),
            "outputs": tensors(signature.outputs),
        }
        for name, signature in graph.signature_def.items()
        if not name.startswith("__")
    }


def test_signatures_are_read_as_tensorflow_reads_them(exported: Path) -> None:
    expected = as_tensorflow_reads(exported)
    assert expected["odd"]["inputs"]["anything"] == {"dtype": "string", "shape": None}
    expected["odd"]["inputs"]["anything"]["optional"] = True
    found = read_signatures(exported)
    assert found == expected
    assert list(found["serving_default"]["inputs"]) == ["dense", "scalar"]
    assert expected["serving_default"]["inputs"]["dense"]["shape"] == [None, 4]


def test_every_dtype_of_tensorflow_has_its_name() -> None:
    import tensorflow as tf
    from tensorflow.core.framework import types_pb2

    from registry import signatures

    for number in types_pb2.DataType.values():
        if 0 < number < 100:
            assert signatures._DTYPES[number] == tf.as_dtype(number).name


def test_version_of_tensorflow_is_read(exported: Path) -> None:
    import tensorflow as tf

    assert read_saved_model(exported).tensorflow_version == tf.__version__


def test_a_file_cut_off_anywhere_is_refused_or_still_a_saved_model(exported: Path, tmp_path: Path) -> None:
    content = (exported / "saved_model.pb").read_bytes()
    whole = read_saved_model(exported)
    for length in range(1, len(content), max(1, len(content) // 400)):
        (tmp_path / "saved_model.pb").write_bytes(content[:length])
        with pytest.raises(InvalidSavedModel, match=r"damaged, or something else|no graph with the tag"):
            read_saved_model(tmp_path)
    assert read_saved_model(exported) == whole


def test_a_graph_for_training_only_is_refused_with_its_tags(exported: Path, tmp_path: Path) -> None:
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((exported / "saved_model.pb").read_bytes())
    del saved.meta_graphs[1]
    (tmp_path / "saved_model.pb").write_bytes(saved.SerializeToString())
    with pytest.raises(InvalidSavedModel, match=r"no graph with the tag 'serve' \(tags: train\)"):
        read_saved_model(tmp_path)


def test_imported_model_is_made_with_its_signatures(exported: Path, tmp_path: Path) -> None:
    import tensorflow as tf

    with Registry(f"sqlite:///{tmp_path}/registry.db", tmp_path / "models") as registry:
        version = registry.import_model("census", exported, tags={"owner": "ada"}, actor="ada")
        assert (version.version, version.state, version.tags) == (1, "ready", {"owner": "ada"})
        assert version.signatures == read_signatures(exported)
        assert version.libraries == {"tensorflow": tf.__version__}
        assert registry.import_model("census", exported).version == 2
        assert registry.publish("census", exported).signatures == version.signatures
        back = registry.export_version("census", 1, tmp_path / "back")
        assert read_signatures(back) == version.signatures
