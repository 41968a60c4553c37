"""The features of one batch, as feature columns see them: each transformation is built once and shared.

TensorFlow's columns turn every categorical feature into a sparse tensor. A dense feature of one value a row
needs none: its ids stay in their rows (`SingleIds`), which saves a dozen operations for each use of a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc
from tensorflow.python.feature_column.sequence_feature_column import SequenceNumericColumn

from appliance.estimator.crossing import crossed, fingerprint

_SINGLE_KEY_COLUMNS = (
    fc.HashedCategoricalColumn,
    fc.VocabularyFileCategoricalColumn,
    fc.VocabularyListCategoricalColumn,
    fc.IdentityCategoricalColumn,
)


class SingleIds(NamedTuple):
    """The ids of a categorical column that has at most one value in each example.

    Fields:
        ids: int64 `[batch]`; -1 where the example has no value, or one outside the vocabulary.
        rows: int64 `[batch]`; the ids with 0 for -1, safe to gather with.
        present: bool `[batch, 1]`, whether the id counts; None when all do.
    """

    ids: Any
    rows: Any
    present: Any

    @classmethod
    def of(cls, ids: tf.Tensor, complete: bool) -> SingleIds:
        """Wrap `ids`; `complete` says that none of them can be negative."""
        if complete:
            return cls(ids, ids, None)
        return cls(ids, tf.maximum(ids, 0), tf.expand_dims(ids >= 0, 1))


class ColumnState(fc.StateManager):
    """The variables of the columns in one part of a model, and the lookup tables that all parts share.

    Variables are made with `get_variable` in the variable scope that is current.
    """

    def __init__(self, tables: dict[tuple[Any, str], Any] | None = None) -> None:
        self._variables: dict[tuple[Any, str], Any] = {}
        self._tables = {} if tables is None else tables

    @property
    def trainable_variables(self) -> list[Any]:
        """The variables that training updates, in the order of creation."""
        return [variable for variable in self._variables.values() if variable.trainable]

    def create_variable(
        self,
        feature_column: Any,
        name: str,
        shape: Any,
        dtype: Any = None,
        trainable: bool = True,
        use_resource: bool = True,
        initializer: Any = None,
    ) -> Any:
        """Create and return the variable `name` of a column."""
        variable = tf.compat.v1.get_variable(
            name,
            shape=shape,
            dtype=dtype or tf.float32,
            initializer=initializer,
            trainable=trainable,
            use_resource=use_resource,
        )
        return self.add_variable(feature_column, variable, name)

    def add_variable(self, feature_column: Any, var: Any, name: str | None = None) -> Any:
        """Keep a variable that exists already, under `name` or its own last name."""
        key = (feature_column, name or var.op.name.rsplit("/", 1)[-1])
        if key in self._variables:
            raise ValueError(f"Column {feature_column.name!r} already has a variable named {key[1]!r}.")
        self._variables[key] = var
        return var

    def get_variable(self, feature_column: Any, name: str) -> Any:
        """Return the variable `name` of a column."""
        try:
            return self._variables[feature_column, name]
        except KeyError:
            raise ValueError(f"Column {feature_column.name!r} has no variable named {name!r}.") from None

    def add_resource(self, feature_column: Any, name: str, resource: Any) -> Any:
        """Keep a lookup table of a column."""
        self._tables[feature_column, name] = resource
        return resource

    def has_resource(self, feature_column: Any, name: str) -> bool:
        """Tell whether the column has made this table before."""
        return (feature_column, name) in self._tables

    def get_resource(self, feature_column: Any, name: str) -> Any:
        """Return a table that the column made before."""
        return self._tables[feature_column, name]


class FeatureInputs:
    """The features of one batch; each column's transformation is built once and shared.

    Args:
        features: dict of feature name to Tensor (`[batch]` or `[batch, ...]`) or SparseTensor.
        training: whether the model is built to be trained by gradients.

    Raises:
        ValueError: `features` is not a dict.
    """

    def __init__(self, features: Mapping[str, Any], *, training: bool = False) -> None:
        if not isinstance(features, Mapping):
            raise ValueError(
                f"features should be a dict of feature name to Tensor; got {type(features).__name__}. Let "
                "the input_fn return a dict whose keys are the feature columns' keys."
            )
        self.training = training
        self._features = dict(features)
        self._tables: dict[tuple[Any, str], Any] = {}
        self._single: dict[Any, SingleIds | None] = {}
        self._fingerprints: dict[Any, tf.Tensor | None] = {}
        self.cache = fc.FeatureTransformationCache(self._features)
        self._table_state = ColumnState(self._tables)

    def new_state(self) -> ColumnState:
        """Return the state for one part of the model; the lookup tables are shared with the other parts."""
        return ColumnState(self._tables)

    def check(self, columns: Iterable[Any]) -> None:
        """Check that every feature which the columns read is there and has a fitting dtype.

        Raises:
            ValueError: names the column, the feature, what was given and what to do.
        """
        for column in columns:
            if column in self._features:
                continue
            for key, spec in column.parse_example_spec.items():
                if key not in self._features:
                    raise ValueError(
                        f"Feature column {column.name!r} reads the feature {key!r}, which is not among the "
                        f"features given: {sorted(map(str, self._features))}. Return it from the input_fn "
                        "(when serving: from the serving input receiver), or remove the column."
                    )
                self._check_dtype(column, key, spec.dtype)

    def _check_dtype(self, column: Any, key: str, expected: tf.DType) -> None:
        tensor = self.cache.get(key, self._table_state)
        numeric = _is_numeric(column, key)
        if numeric and tensor.dtype == tf.string:
            remedy = "Parse the strings to numbers in the input_fn, or use a categorical column."
        elif not numeric and tensor.dtype.is_floating:
            remedy = "Cast it to an integer or a string in the input_fn, or use a bucketized_column."
        elif (
            not numeric
            and not isinstance(column, fc.CrossedColumn)
            and (tensor.dtype == tf.string) != (expected == tf.string)
        ):
            remedy = f"Give the column dtype=tf.{tensor.dtype.name}, or convert the feature in the input_fn."
        else:
            return
        raise ValueError(
            f"Feature {key!r} has dtype {tensor.dtype.name}, which does not fit the feature column "
            f"{column.name!r} ({type(column).__name__}, expecting "
            f"{'a number' if numeric else expected.name}). {remedy}"
        )

    def single_ids(self, column: Any) -> SingleIds | None:
        """Return the ids of a categorical column over dense features of one value a row, else None."""
        if column not in self._single:
            self._single[column] = self._make_single_ids(column)
        return self._single[column]

    def _make_single_ids(self, column: Any) -> SingleIds | None:
        if isinstance(column, _SINGLE_KEY_COLUMNS):
            return self._lookup_ids(column)
        if isinstance(column, fc.BucketizedColumn):
            return self._bucket_ids(column)
        if isinstance(column, fc.CrossedColumn):
            return self._crossed_ids(column)
        return None

    def _single_values(self, key: str) -> tf.Tensor | None:
        """Return a dense feature of one value a row as `[batch]`, or None."""
        if key not in self._features:
            return None
        tensor = self.cache.get(key, self._table_state)
        if isinstance(tensor, tf.Tensor) and tensor.shape.rank == 2 and tensor.shape[1] == 1:
            return tf.reshape(tensor, [-1])
        return None

    def _lookup_ids(self, column: Any) -> SingleIds | None:
        values = self._single_values(column.key)
        if values is None:
            return None
        # The column drops '' and -1 as missing, at the price of a dozen operations that find and re-index
        # what remains. Here every row keeps its place, and the missing ones are marked afterwards.
        missing = _missing(values)
        if isinstance(column, fc.IdentityCategoricalColumn):
            values = tf.where(missing, tf.zeros_like(values), values)
        full = _full_sparse(values)
        transformed = column.transform_feature(
            fc.FeatureTransformationCache({column.key: full}), self._table_state
        )
        ids = tf.where(missing, tf.constant(-1, tf.int64), tf.cast(transformed.values, tf.int64))
        return SingleIds.of(ids, complete=False)

    def _bucket_ids(self, column: Any) -> SingleIds | None:
        buckets = self.cache.get(column, self._table_state)
        if buckets.shape.rank != 2 or buckets.shape[1] != 1:
            return None
        return SingleIds.of(tf.cast(tf.reshape(buckets, [-1]), tf.int64), complete=True)

    def _crossed_ids(self, column: Any) -> SingleIds | None:
        leaves = fc._collect_leaf_level_keys(column)
        fingerprints = [self._fingerprint(leaf) for leaf in leaves]
        if any(part is None for part in fingerprints):
            return None
        ids = crossed(fingerprints, column.hash_bucket_size, column.hash_key)
        # An id of -1 is either a missing value, and then the example has no cross, or a word outside the
        # vocabulary, which is crossed as -1. Only the feature's own values tell which.
        looked_up = [leaf for leaf in leaves if isinstance(leaf, _SINGLE_KEY_COLUMNS)]
        missing = [_missing(self._single_values(leaf.key)) for leaf in looked_up]
        if not missing:
            return SingleIds.of(ids, complete=True)
        somewhere = missing[0] if len(missing) == 1 else tf.reduce_any(tf.stack(missing), axis=0)
        return SingleIds.of(tf.where(somewhere, tf.constant(-1, tf.int64), ids), complete=False)

    def _fingerprint(self, leaf: Any) -> tf.Tensor | None:
        """Return what a feature or column adds to crosses, or None if it has not one value a row."""
        if leaf not in self._fingerprints:
            if isinstance(leaf, str):
                values = self._single_values(leaf)
            else:
                single = self.single_ids(leaf)
                values = None if single is None else single.ids
            self._fingerprints[leaf] = None if values is None else fingerprint(values)
        return self._fingerprints[leaf]

    def sparse_ids(self, column: Any, state: ColumnState) -> Any:
        """Return the ids and weights of any categorical column, as two-dimensional SparseTensors."""
        pair = column.get_sparse_tensors(self.cache, state)
        return fc.CategoricalColumn.IdWeightPair(
            _two_dimensional(pair.id_tensor), _two_dimensional(pair.weight_tensor)
        )


def _missing(values: tf.Tensor) -> tf.Tensor:
    """Tell which values stand for none at all, as TensorFlow's columns have it: '' and -1."""
    return tf.equal(values, "" if values.dtype == tf.string else tf.cast(-1, values.dtype))


def _full_sparse(values: tf.Tensor) -> tf.sparse.SparseTensor:
    """Return `values` `[batch]` as a SparseTensor `[batch, 1]` without gaps."""
    size = tf.shape(values, out_type=tf.int64)[0]
    rows = tf.range(size)
    return tf.sparse.SparseTensor(
        tf.stack([rows, tf.zeros_like(rows)], axis=1), values, tf.stack([size, tf.constant(1, tf.int64)])
    )


def _two_dimensional(sparse: Any) -> Any:
    if sparse is None or sparse.shape.rank == 2:
        return sparse
    return tf.sparse.reshape(sparse, tf.stack([tf.shape(sparse, out_type=tf.int64)[0], -1]))


def _is_numeric(column: Any, key: str) -> bool:
    """Tell whether `column` reads the feature `key` as a number."""
    if isinstance(column, fc.NumericColumn | SequenceNumericColumn):
        return column.key == key
    if isinstance(column, fc.WeightedCategoricalColumn) and column.weight_feature_key == key:
        return True
    return any(
        not isinstance(parent, str) and key in parent.parse_example_spec and _is_numeric(parent, key)
        for parent in column.parents
    )
