"""Figures of proofs: the ladder, the museum of bugs and the curves that hide them."""
