"""Exercises of module 01, where the memory and the time go."""
