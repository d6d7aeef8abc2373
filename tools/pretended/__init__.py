"""GPUs that are not there: ranks on any machine compute with tensors that say they lie on one, and are as strict."""
