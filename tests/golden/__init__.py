"""Numbers recorded from tf.estimator itself, their scenarios, and the program that records them."""
