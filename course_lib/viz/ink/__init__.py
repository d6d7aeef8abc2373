"""What every figure is drawn with: canvas, colours, letters, axes, marks and the picture that comes out."""
