"""Measurements: what a step really keeps, sends and rounds, here, on a GPU, or on ranks that are not there."""
