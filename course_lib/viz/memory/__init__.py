"""Figures of memory: what fills a GPU, who holds which piece, and what is gathered when."""
