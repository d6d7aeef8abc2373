"""`make wild`: bugs that real releases had, each caught by the ladder, with the mended release beside it."""
