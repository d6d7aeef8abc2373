"""Exercises of lesson 11: memory savers and fine-tuning."""
