"""Averages that lose something on purpose, lesson 10: compressed gradients, and models that meet their neighbours."""
