"""Pipelines, lesson 04: a model in stages, and one list of instructions for each rank."""
