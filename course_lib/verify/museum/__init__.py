"""The bug museum: silent errors that happened to others, as patches on this library.

Each passes for training when one looks at its loss curve, and each is caught by the verification ladder. `BUGS` are
those of data parallelism, `PIPELINE_BUGS`, `TENSOR_BUGS`, `SHARDED_BUGS`, `CONTEXT_BUGS` and `EXPERT_BUGS` those of
pipeline, tensor, sharded data, context and expert parallelism, `ADAPTER_BUGS` those of adapters under any of them,
`SAVER_BUGS` those of other memory savers, `LOSSY_BUGS` those of averages that lose something, which identities catch:
each file's own, found by their names. `DECOYS` look like bugs and are none.
"""

from __future__ import annotations

from course_lib.door import all_names

__getattr__, __dir__ = all_names(__name__, "*.py")
