"""What training costs, by formula: torch-free, and independent of the code that trains and communicates.

`costs.comm_time`, or `from course_lib.costs import comm_time`: every public name of the files below is found here.

    model       one model: parameters, states, activations, operations
    comm        what ranks send to each other, and how long that takes       -> model
    published   formulas and runs as they were published, and their gaps     -> model
    sweep       one GPU under all techniques together; every legal way       -> model, comm, published

The models, devices, links and units that the formulas are asked with are found here as well.
"""

from __future__ import annotations

from course_lib.door import all_names

__getattr__, __dir__ = all_names(
    __name__, "*/*.py", beside=("course_lib.config", "course_lib.hardware", "course_lib.units")
)
