"""Figures of models and numbers: layers, heads, bits, gradients, rounding."""
