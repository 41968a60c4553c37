"""Drops TensorFlow's advice to give up feature columns: who uses this library uses them on purpose."""

from __future__ import annotations

import logging

__all__ = ["install"]


class FeatureColumnAdvice(logging.Filter):
    """Lets every record pass but the warning that a function of `tf.feature_column` is deprecated."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to keep the record."""
        # TensorFlow's arguments are: where it was called, the function, its module, when it goes, the advice.
        advice = "is deprecated and will be removed" in str(record.msg)
        return not (advice and isinstance(record.args, tuple) and _is_of_feature_columns(record.args[2:3]))


def _is_of_feature_columns(module: tuple[object, ...]) -> bool:
    return any(str(name).startswith("tensorflow.python.feature_column") for name in module)


def install() -> None:
    """Filter the logger `tensorflow`, once however often this is called."""
    logger = logging.getLogger("tensorflow")
    if not any(isinstance(present, FeatureColumnAdvice) for present in logger.filters):
        logger.addFilter(FeatureColumnAdvice())
