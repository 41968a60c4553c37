"""tf.estimator on current TensorFlow, with the Experiment of TF.Learn."""
