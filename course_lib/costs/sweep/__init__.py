"""Memory of one GPU under all techniques together, and of every legal way to spread a model."""
