"""Models that know nothing of ranks."""
