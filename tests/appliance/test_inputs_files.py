"""input_fns over CSV, TFRecord and Parquet files."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from appliance.estimator import DNNRegressor, inputs
from tests.appliance.test_inputs import batches_of

ROWS = 90
SPEC = {
    "id": tf.io.FixedLenFeature([], tf.int64),
    "word": tf.io.FixedLenFeature([], tf.string),
    "x": tf.io.FixedLenFeature([], tf.float32),
}


def example(i):
    lists = {
        "id": tf.train.Feature(int64_list=tf.train.Int64List(value=[i])),
        "word": tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[b"even" if i % 2 == 0 else b"odd, say"])
        ),
        "x": tf.train.Feature(float_list=tf.train.FloatList(value=[i / 4])),
    }
    return tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()


def csv_lines(rows):
    return [
        "id,word,x",
        *(f"{i},{'even' if i % 2 == 0 else chr(34) + 'odd, say' + chr(34)},{i / 4}" for i in rows),
    ]


def write_csv(path, rows):
    path.write_text("\n".join(csv_lines(rows)) + "\n")


def write_tfrecord(path, rows):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for i in rows:
            writer.write(example(i))


def write_parquet(path, rows):
    words = ["even" if i % 2 == 0 else "odd, say" for i in rows]
    table = pa.table({"id": list(rows), "word": words, "x": pa.array([i / 4 for i in rows], pa.float32())})
    pq.write_table(table, path, row_group_size=10)


KINDS = {
    "csv": (write_csv, inputs.csv_input_fn),
    "tfrecord": (
        write_tfrecord,
        lambda files, *args, **kw: inputs.tfrecord_input_fn(files, SPEC, *args, **kw),
    ),
    "parquet": (write_parquet, inputs.parquet_input_fn),
}


@pytest.fixture(params=KINDS)
def reader(request, tmp_path):
    """Three files of 30 rows and what makes their input_fn."""
    write, read = KINDS[request.param]
    for i in range(3):
        write(tmp_path / f"part-{i}.{request.param}", range(30 * i, 30 * i + 30))
    return lambda *args, **options: read(str(tmp_path / f"part-*.{request.param}"), *args, **options)


def test_files_give_their_rows_with_names_and_types(reader):
    taken = batches_of(reader("x", batch_size=40, shuffle=False, num_parallel_reads=1))
    assert [len(labels) for _, labels in taken] == [40, 40, 10]
    features = {name: np.concatenate([f[name] for f, _ in taken]) for name in ("id", "word")}
    assert features["id"].tolist() == list(range(ROWS))
    assert features["word"][:2].tolist() == [b"even", b"odd, say"]
    labels = np.concatenate([labels for _, labels in taken])
    assert labels.dtype == np.float32
    np.testing.assert_array_equal(labels, np.arange(ROWS) / 4)


def test_shuffled_epochs_have_every_row_in_another_order(reader):
    taken = batches_of(reader(batch_size=32, num_epochs=2, shuffle=True))
    assert [len(features["id"]) for features in taken] == [32, 32, 32, 32, 32, 20]
    first, second = np.concatenate([features["id"] for features in taken]).reshape(2, ROWS)
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert (first != second).any()
    assert (np.sort(first) != first).any()


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_share_the_files_or_their_rows(reader, workers):
    shares = []
    for worker in range(workers):
        context = tf.distribute.InputContext(workers, worker)
        taken = batches_of(reader(batch_size=7, shuffle=True), context=context)
        shares.append(np.concatenate([features["id"] for features in taken]))
    assert min(map(len, shares)) > 0
    assert sorted(np.concatenate(shares)) == list(range(ROWS))


def test_the_order_follows_the_seed_of_the_graph(reader):
    orders = [
        np.concatenate([f["id"] for f in batches_of(reader(shuffle=True), seed=seed)]).tolist()
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_bad_files_and_arguments_are_refused(reader, tmp_path):
    with pytest.raises(ValueError, match="shuffle must be provided"):
        reader()
    with pytest.raises(ValueError, match="num_parallel_reads must be at least 1"):
        reader(shuffle=True, num_parallel_reads=0)
    with pytest.raises(ValueError, match="price"):
        reader("price", shuffle=True)
    with pytest.raises(FileNotFoundError, match=r"no file .*nothing-\*"):
        inputs.csv_input_fn(tmp_path / "nothing-*", shuffle=True)


def test_an_estimator_trains_from_files(reader, tmp_path):
    columns = [
        tf.feature_column.numeric_column("id"),
        tf.feature_column.indicator_column(
            tf.feature_column.categorical_column_with_vocabulary_list("word", ["even", "odd, say"])
        ),
    ]
    model = DNNRegressor([4], columns, str(tmp_path / "model"))
    model.train(reader("x", shuffle=True, num_epochs=None, batch_size=16), steps=12)
    assert model.evaluate(reader("x", shuffle=False))["global_step"] == 12


def test_csv_types_come_from_the_rows_or_from_the_caller(tmp_path):
    (tmp_path / "a.csv").write_text('n,f,s,mixed\n1,2,a,1\n2,2.5,,x\n3,,"b ""c""",\n')
    read = inputs.csv_input_fn(
        tmp_path / "a.csv", dtypes={"n": "float64"}, defaults={"f": -1.0}, shuffle=False
    )
    (features,) = batches_of(read)
    assert features["n"].dtype == np.float64
    assert features["f"].tolist() == [2, 2.5, -1]
    assert features["s"].tolist() == [b"a", b"", b'b "c"']
    assert features["mixed"].tolist() == [b"1", b"x", b""]


def test_csv_without_header_and_gzipped(tmp_path):
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write("1;2\n3;4\n")
    read = inputs.csv_input_fn(
        tmp_path / "a.csv.gz", "b", column_names=["a", "b"], delimiter=";", shuffle=False
    )
    ((features, labels),) = batches_of(read)
    assert features["a"].tolist() == [1, 3]
    assert labels.tolist() == [2, 4]


def test_csv_errors_name_the_file_or_the_field(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text("b,a\n1,2\n")
    with pytest.raises(ValueError, match=r"header of .*b.csv is not that of .*a.csv"):
        inputs.csv_input_fn([tmp_path / "a.csv", tmp_path / "b.csv"], shuffle=True)
    with pytest.raises(ValueError, match="'a' cannot have the dtype bool"):
        inputs.csv_input_fn(tmp_path / "a.csv", dtypes={"a": "bool"}, shuffle=True)
    (tmp_path / "c.csv").write_text("a,b\n1,2\n,3\n")
    with pytest.raises(tf.errors.InvalidArgumentError, match="Field 0 is required but missing in record 1"):
        batches_of(inputs.csv_input_fn(tmp_path / "c.csv", shuffle=False))


def test_parquet_refuses_what_a_model_cannot_take(tmp_path):
    pq.write_table(pa.table({"a": [[1], [1, 2]], "b": [1, None]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="'a' has lists of any length"):
        inputs.parquet_input_fn(tmp_path / "a.parquet", shuffle=True)
    with pytest.raises(tf.errors.OpError, match="'b' has 1 missing values"):
        batches_of(inputs.parquet_input_fn(tmp_path / "a.parquet", features=["b"], shuffle=True))
