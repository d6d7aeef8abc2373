"""Sharding, lesson 06: parameters, gradients and states in flat rows, of which each rank keeps a piece."""
