"""The exercises of module 06: ZeRO and FSDP."""
