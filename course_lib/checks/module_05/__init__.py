"""Exercises of module 05, tensor parallelism."""
