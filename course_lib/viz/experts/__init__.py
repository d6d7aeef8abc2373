"""Figures of experts: which tokens go where, what is dropped, and how even the work is."""
