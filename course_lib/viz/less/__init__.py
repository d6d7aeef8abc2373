"""Figures of what workers agree on when they say less: prices, opinions, memories, dice, bowls and wires."""
