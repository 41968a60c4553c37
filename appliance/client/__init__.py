"""The Python client of the appliance. Imports neither TensorFlow nor any server code."""
