"""A client of TensorFlow Serving, which the model server here answers just as well."""
