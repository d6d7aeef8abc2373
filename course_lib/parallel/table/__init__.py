"""What every technique stands on: the layout as a table, who holds which tensor, the mesh, and agreement of ranks."""
