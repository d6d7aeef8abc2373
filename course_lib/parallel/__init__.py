"""Ways to share a model's training among ranks, each a few functions around a model that knows nothing of them."""
