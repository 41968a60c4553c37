"""Programs written for tf.estimator on TensorFlow 2.x; only the import of `estimator` was changed."""
