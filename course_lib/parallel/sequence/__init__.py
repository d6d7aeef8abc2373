"""Context parallelism: ranks that share a sequence, each with some of its positions."""
