"""Data parallelism, lesson 03: every rank has the whole model, and gradients are averaged in buckets."""
