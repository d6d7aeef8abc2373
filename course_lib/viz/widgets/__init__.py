"""What a reader moves: fields, explorers and figures in steps."""
