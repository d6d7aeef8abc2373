"""What one model is, by formula: its parameters, what lasts from step to step, what backward reads, operations."""
