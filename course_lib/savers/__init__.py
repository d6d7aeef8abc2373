"""What keeps a model small in memory: one saver a file."""
