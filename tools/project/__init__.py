"""The project's instructor side: trainers with planted bugs from a seed, and the rubric that grades what comes back."""
