"""Trainers of others as the ladder's `Trainable`: one file each, imported by itself, so that none needs another's."""
