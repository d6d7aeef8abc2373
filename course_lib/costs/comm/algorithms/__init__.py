"""Each algorithm's own formula; `comm_time` of `course_lib.costs.comm.collectives` chooses one by name."""
