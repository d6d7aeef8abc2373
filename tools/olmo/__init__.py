"""`make olmo`: OLMo's own packages on this machine's CPUs, each in an environment of its own."""
