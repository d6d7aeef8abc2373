"""Figures of a job on a cluster: who starts whom, which call a rank waits in, and what to ask when it goes wrong."""
