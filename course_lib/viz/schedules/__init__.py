"""Figures of pipeline schedules in time."""
