"""Exercises of module 98, the toy."""
