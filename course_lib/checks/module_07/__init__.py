"""The exercises of module 07: FSDP x TP."""
