"""Text, batches and the training step."""
