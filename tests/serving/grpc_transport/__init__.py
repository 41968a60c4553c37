"""Tests of the gRPC server transport: its parts as pure functions, and whole over memory and real sockets."""
