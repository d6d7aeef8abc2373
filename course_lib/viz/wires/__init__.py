"""Figures of messages: rings, chunks, buckets, wires and who waits for whom."""
