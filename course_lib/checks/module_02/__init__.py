"""Exercises of module 02, collectives."""
