"""Exercises of module 04, model and pipeline parallelism."""
