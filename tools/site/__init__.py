"""`make site`: the course as pages that need no kernel, and to be read no network."""
