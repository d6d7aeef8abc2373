"""Grading: nbgrader's parts without its server, each submission run alone."""
