"""Tensor parallelism, lesson 05: matrices cut by columns and by rows, and the exchanges at their edges."""
