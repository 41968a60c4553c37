"""The tests."""

import appliance  # noqa: F401  Before TensorFlow: the processes of the tests start as those of the product.
