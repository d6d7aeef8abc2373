"""Formulas and runs as they were published, each with what it assumes, and by how much they are off."""
