"""The exercises of module 08: three axes and a planner."""
