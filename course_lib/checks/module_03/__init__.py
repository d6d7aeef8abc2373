"""Exercises of module 03, data parallelism."""
