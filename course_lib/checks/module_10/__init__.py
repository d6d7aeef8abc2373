"""The exercises of module 10, less talk."""
