"""What ranks send to each other, by formula: collectives, what techniques make of them, and their alpha-beta times."""
