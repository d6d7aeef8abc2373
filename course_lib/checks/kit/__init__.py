"""What all exercises stand on: how an answer is run, compared and judged. Chapters import it, and never each other."""
