"""Questions with a computed answer: the exam's bank, and the ten of the placement test."""
