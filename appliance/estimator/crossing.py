"""The hashed cross of features with one value a row, by arithmetic on whole batches.

TensorFlow's `sparse.cross_hashed` shares out each batch among threads and waits for them, for every cross in
every step. The same numbers come out of a few operations on 64-bit integers, some of which crosses share.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

_MULTIPLIER = 0xC6A4A7935BD1E995
_DEFAULT_KEY = 0xDECAFCAFFE
_LARGEST_INT64 = 2**63 - 1


def fingerprint(values: tf.Tensor) -> tf.Tensor:
    """Return what one feature adds to a cross: its values' fingerprints, multiplied and mixed.

    Args:
        values: strings or integers `[batch]`.

    Returns:
        uint64 `[batch]`.
    """
    with tf.device("/cpu:0"):
        if values.dtype == tf.string:
            prints = _string_fingerprint(values)
        else:
            prints = tf.bitcast(tf.cast(values, tf.int64), tf.uint64)
        return _mix(prints * _constant(_MULTIPLIER)) * _constant(_MULTIPLIER)


def crossed(fingerprints: Sequence[tf.Tensor], buckets: int, hash_key: int | None) -> tf.Tensor:
    """Return the bucket of each example.

    Args:
        fingerprints: of the crossed features, in order, as `fingerprint` returns them.
        buckets: how many buckets there are.
        hash_key: where the hash starts; None or 0 for TensorFlow's default.

    Returns:
        int64 `[batch]`, in [0, buckets).

    Source: `tf.sparse.cross_hashed`, whose hash is TensorFlow's `FingerprintCat64`.
    """
    with tf.device("/cpu:0"):
        multiplier = _constant(_MULTIPLIER)
        result = _constant(hash_key or _DEFAULT_KEY)
        for part in fingerprints:
            combined = _xor(_xor(result, multiplier), part) * multiplier
            result = _mix(_mix(combined) * multiplier)
        return tf.bitcast(tf.math.floormod(result, _constant(buckets)), tf.int64)


def _string_fingerprint(values: tf.Tensor) -> tf.Tensor:
    # TensorFlow gives a string's 64-bit hash only as a remainder. By 2^63 - 1 the quotient is 0, 1 or 2;
    # since 2^63 - 1 is -1 modulo 4, the remainder by 4 tells which.
    remainder = tf.strings.to_hash_bucket_fast(values, _LARGEST_INT64)
    quotient = tf.math.floormod(remainder - tf.strings.to_hash_bucket_fast(values, 4), 4)
    return tf.bitcast(remainder, tf.uint64) + tf.bitcast(quotient, tf.uint64) * _constant(_LARGEST_INT64)


def _mix(values: tf.Tensor) -> tf.Tensor:
    return _xor(values, tf.bitwise.right_shift(values, _constant(47)))


def _xor(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(left, right)


def _constant(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)
