"""Figures of one sequence on several ranks: who computes which attention, and what goes round."""
