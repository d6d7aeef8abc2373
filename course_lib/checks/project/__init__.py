"""The project at the course's end: three trainers with planted bugs are brought up the ladder, in plain PyTorch."""
