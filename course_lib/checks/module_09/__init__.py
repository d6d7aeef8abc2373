"""The exercises of module 09: on the cluster."""
