"""What somebody needs who teaches a route: a run sheet, a handout, slides, seats, and a page for what goes wrong."""
