"""From TensorFlow's own feature columns to the input of a network, and to a linear model.

TensorFlow still ships `tf.feature_column` and its protocol (`create_state`, `get_dense_tensor`,
`get_sparse_tensors`); what Keras 3 dropped are the layers that drive it. `FeatureInputs` holds the features
of one batch and transforms each column at most once, however many parts of the model use it; `dense_input`
and `linear_model` build the two usual parts on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as fc

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

    Raises:
        ValueError: `features` is not a dict.
    """

    def __init__(self, features: Mapping[str, Any]) -> None:
        if not isinstance(features, Mapping):
            raise ValueError(
                f"features should be a dict of feature name to Tensor; got {type(features).__name__}. Let "
                "the input_fn "
                "return a dict whose keys are the feature columns' keys."
            )
        self._features = dict(features)
        self._tables: dict[tuple[Any, str], Any] = {}
        self._single: dict[Any, SingleIds | None] = {}
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
                        "features given: "
                        f"{sorted(map(str, self._features))}. Return it from the input_fn (when serving: "
                        "from the serving input "
                        "receiver), or remove the column."
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
            f"{column.name!r} "
            f"({type(column).__name__}, expecting {'a number' if numeric else expected.name}). {remedy}"
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
        missing = tf.equal(values, "" if values.dtype == tf.string else tf.cast(-1, values.dtype))
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
        inputs: list[Any] = []
        present = []
        for leaf in fc._collect_leaf_level_keys(column):
            if isinstance(leaf, str):
                if self._single_values(leaf) is None:
                    return None
                inputs.append(self.cache.get(leaf, self._table_state))
                continue
            single = self.single_ids(leaf)
            if single is None:
                return None
            # An id of -1 is either a missing value, and then the example has no cross, or a word outside the
            # vocabulary, which is crossed as -1. Only the feature's own values tell which.
            values = self._single_values(leaf.key) if single.present is not None else None
            if values is not None:
                missing_value = "" if values.dtype == tf.string else tf.cast(-1, values.dtype)
                present.append(tf.not_equal(values, missing_value))
            inputs.append(_full_sparse(single.ids))
        crossed = tf.sparse.cross_hashed(inputs, column.hash_bucket_size, column.hash_key).values
        if not present:
            return SingleIds.of(crossed, complete=True)
        everywhere = present[0] if len(present) == 1 else tf.reduce_all(tf.stack(present), axis=0)
        return SingleIds.of(tf.where(everywhere, crossed, tf.constant(-1, tf.int64)), complete=False)

    def sparse_ids(self, column: Any, state: ColumnState) -> Any:
        """Return the ids and weights of any categorical column, as two-dimensional SparseTensors."""
        pair = column.get_sparse_tensors(self.cache, state)
        return fc.CategoricalColumn.IdWeightPair(
            _two_dimensional(pair.id_tensor), _two_dimensional(pair.weight_tensor)
        )


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
    if isinstance(column, fc.NumericColumn):
        return column.key == key
    if isinstance(column, fc.WeightedCategoricalColumn) and column.weight_feature_key == key:
        return True
    return any(
        not isinstance(parent, str) and key in parent.parse_example_spec and _is_numeric(parent, key)
        for parent in column.parents
    )


def check_columns(columns: Any, argument: str = "feature_columns") -> list[Any]:
    """Return the columns sorted by name, after checking them.

    Raises:
        ValueError: there are none, one is not a feature column, or two have the same name.
    """
    listed = [columns] if isinstance(columns, fc.fc_types.FeatureColumn) else columns
    if isinstance(listed, Mapping) or not isinstance(listed, Iterable):
        raise ValueError(f"{argument} should be a list of feature columns; got {type(columns).__name__}.")
    listed = list(listed)
    if not listed:
        raise ValueError(f"{argument} is empty. Give at least one column made with tf.feature_column.")
    by_name: dict[str, Any] = {}
    for column in listed:
        if not isinstance(column, fc.fc_types.FeatureColumn):
            raise ValueError(
                f"Items of {argument} must be feature columns (tf.feature_column.*); got {column!r} of type "
                f"{type(column).__name__}."
            )
        if column.name in by_name:
            raise ValueError(
                f"{argument} has two columns named {column.name!r}: {by_name[column.name]} and {column}. "
                "Remove one, or give "
                "it a feature of another name."
            )
        by_name[column.name] = column
    return [by_name[name] for name in sorted(by_name)]


def variable_scope_name(name: str) -> str:
    """Return a column's name with the characters replaced that a variable scope may not contain."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", name)


def dense_input(inputs: FeatureInputs, columns: Sequence[Any]) -> tuple[tf.Tensor, list[Any]]:
    """Concatenate dense columns, sorted by name, into one tensor.

    Embedding variables are created as `<current variable scope>/<column name>/embedding_weights`.

    Returns:
        float32 `[batch, sum of the columns' sizes]`, and the trainable variables.

    Raises:
        ValueError: a column is not dense, or its feature is missing or does not fit.

    Source: `tf.keras.layers.DenseFeatures` of Keras 2.
    """
    columns = check_columns(columns)
    for column in columns:
        if not isinstance(column, fc.DenseColumn):
            raise ValueError(
                f"The input of a network takes dense columns; {column.name!r} is a {type(column).__name__}. "
                "Wrap it in "
                "tf.feature_column.embedding_column or tf.feature_column.indicator_column."
            )
    inputs.check(columns)
    state = inputs.new_state()
    tensors = []
    for column in columns:
        with tf.compat.v1.variable_scope(variable_scope_name(column.name)):
            create_state(column, state)
            tensors.append(dense_tensor(inputs, column, state))
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis=1), state.trainable_variables


def create_state(column: Any, state: ColumnState) -> None:
    """Create the variables of a column in the current variable scope (shared ones: at the root, once)."""
    if not isinstance(column, fc.SharedEmbeddingColumn):
        column.create_state(state)
        return
    # The column's own creator would keep one variable, and with it the graph, for every graph it was ever
    # used in.
    creator = column.shared_embedding_column_creator
    root = tf.compat.v1.VariableScope(reuse=tf.compat.v1.AUTO_REUSE, use_resource=True)
    with tf.compat.v1.variable_scope(root, auxiliary_name_scope=False):
        variable = tf.compat.v1.get_variable(
            creator._name,
            shape=(creator._num_buckets, creator.dimension),
            initializer=creator._initializer,
            trainable=creator._trainable,
        )
    if creator._ckpt_to_load_from is not None:
        tf.compat.v1.train.init_from_checkpoint(
            creator._ckpt_to_load_from, {creator._tensor_name_in_ckpt: variable}
        )
    state.add_variable(column, variable, "embedding_weights")


def dense_tensor(inputs: FeatureInputs, column: Any, state: ColumnState) -> tf.Tensor:
    """Return a dense column's values as float32 `[batch, size]`."""
    size = column.variable_shape.num_elements()
    if isinstance(column, fc.EmbeddingColumn | fc.SharedEmbeddingColumn):
        return _embedding(inputs, column, state)
    if isinstance(column, fc.IndicatorColumn | fc.BucketizedColumn):
        categorical = column.categorical_column if isinstance(column, fc.IndicatorColumn) else column
        single = inputs.single_ids(categorical)
        if single is not None:
            return tf.one_hot(single.ids, size)
    tensor = column.get_dense_tensor(inputs.cache, state)
    if tensor.shape.rank == 2 and tensor.shape[1] == size:
        return tensor
    elements = tensor.shape[1:].num_elements()
    if elements is not None and elements != size:
        raise ValueError(
            f"Feature column {column.name!r} expects {size} values an example (shape "
            f"{column.variable_shape}); the feature "
            f"has shape {tensor.shape}. Change the column's shape or the feature's."
        )
    return tf.reshape(tensor, [-1, size])


def _embedding(inputs: FeatureInputs, column: Any, state: ColumnState) -> tf.Tensor:
    categorical = column.categorical_column
    if isinstance(categorical, fc.SequenceCategoricalColumn):
        raise ValueError(
            f"Column {column.name!r} embeds the sequence column {categorical.name!r}, which a network "
            "without recurrence "
            "cannot take. Use a categorical_column_with_* that is not a sequence, or an RNN estimator."
        )
    weights = state.get_variable(column, "embedding_weights")
    if getattr(column, "ckpt_to_load_from", None) is not None:
        tf.compat.v1.train.init_from_checkpoint(
            column.ckpt_to_load_from, {column.tensor_name_in_ckpt: weights}
        )
    single = inputs.single_ids(categorical)
    if single is not None and column.max_norm is None:
        return lookup(weights, single, name=variable_scope_name(column.name))
    pair = inputs.sparse_ids(categorical, state)
    return tf.nn.safe_embedding_lookup_sparse(
        weights, pair.id_tensor, pair.weight_tensor, combiner=column.combiner, max_norm=column.max_norm
    )


def lookup(weights: Any, single: SingleIds, name: str) -> tf.Tensor:
    """Return a row of `weights` for each example, zeros where it has no value: `[batch, row size]`."""
    rows = tf.gather(weights, single.rows, name=name)
    if single.present is None:
        return rows
    return tf.where(single.present, rows, tf.zeros([], rows.dtype))


def linear_model(
    inputs: FeatureInputs, columns: Sequence[Any], units: int, sparse_combiner: str = "sum"
) -> tuple[tf.Tensor, Any, list[Any]]:
    """Build `sum over columns of (values x weights) + bias`.

    Variables, in the current variable scope: `<column name>/weights` of shape `[buckets or size, units]` and
    `bias_weights` of shape `[units]`, all zero at first.

    Args:
        inputs: the features.
        columns: dense or categorical columns.
        units: the size of the output.
        sparse_combiner: how a categorical column with several values an example is reduced: sum, mean or
            sqrtn.

    Returns:
        float32 `[batch, units]`; the bias variable; the other trainable variables.

    Raises:
        ValueError: a column is neither dense nor categorical, or its feature is missing or does not fit.

    Source: `tf.keras.experimental.LinearModel` and tf.estimator's linear model.
    """
    columns = check_columns(columns)
    for column in columns:
        if not isinstance(column, fc.DenseColumn | fc.CategoricalColumn):
            raise ValueError(
                f"A linear model takes dense or categorical columns; {column.name!r} is a "
                f"{type(column).__name__}."
            )
    inputs.check(columns)
    state = inputs.new_state()
    sums = []
    dense: list[tuple[tf.Tensor, Any]] = []
    for column in columns:
        categorical = isinstance(column, fc.CategoricalColumn)
        with tf.compat.v1.variable_scope(variable_scope_name(column.name)):
            create_state(column, state)
            rows = column.num_buckets if categorical else column.variable_shape.num_elements()
            weights = state.create_variable(column, "weights", [rows, units], initializer=_zeros())
            if categorical:
                sums.append(_weighted_sum(inputs, column, state, weights, sparse_combiner))
            else:
                dense.append((dense_tensor(inputs, column, state), weights))
    if dense:
        # One product for all dense columns, for the gain in speed.
        values, kernels = zip(*dense, strict=True)
        sums.append(tf.matmul(_concat(values, axis=1), _concat(kernels, axis=0)))
    bias = tf.compat.v1.get_variable("bias_weights", [units], initializer=_zeros(), use_resource=True)
    total = sums[0] if len(sums) == 1 else tf.add_n(sums)
    return tf.nn.bias_add(total, bias), bias, state.trainable_variables


def _weighted_sum(
    inputs: FeatureInputs, column: Any, state: ColumnState, weights: Any, sparse_combiner: str
) -> tf.Tensor:
    single = inputs.single_ids(column)
    if single is not None:
        return lookup(weights, single, name="weighted_sum")
    pair = inputs.sparse_ids(column, state)
    return tf.nn.safe_embedding_lookup_sparse(
        weights, pair.id_tensor, pair.weight_tensor, combiner=sparse_combiner
    )


def _zeros() -> Any:
    return tf.compat.v1.zeros_initializer()


def _concat(tensors: Sequence[Any], axis: int) -> Any:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis=axis)
