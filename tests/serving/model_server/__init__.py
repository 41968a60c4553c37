"""Tests of the model server and the parts it is made of."""
