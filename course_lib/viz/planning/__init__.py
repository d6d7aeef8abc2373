"""Figures of plans: what a step's time is made of, which layouts are worth it, what scaling costs."""
