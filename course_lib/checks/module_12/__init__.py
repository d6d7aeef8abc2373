"""The exercises of module 12: on the cluster."""
