"""The exercises of module 09: long contexts and experts."""
