"""Ways to share a model's training among ranks, each a few functions around a model that knows nothing of them.

`table` is what all of them stand on; `data`, `pipelines`, `tensors` and `sharding` are lessons 03 to 06, `sequence` and
`experts` lesson 09. What a lesson takes from them is found here too: `from course_lib.parallel import Sharing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.door import listed_names

if TYPE_CHECKING:
    from course_lib.parallel.data.buckets import fill, trained
    from course_lib.parallel.data.ddp import DistributedDataParallel
    from course_lib.parallel.experts.spread import Spread
    from course_lib.parallel.sequence.gathered import gathered_attention
    from course_lib.parallel.sharding.flat_row import Sharing
    from course_lib.parallel.sharding.offload import CPUOffloadPolicy, DiskOffloadPolicy, tier_bytes
    from course_lib.parallel.sharding.sharded import ShardedModel
    from course_lib.parallel.sharding.wrapping import by_block, by_block_and_size, by_block_group, size_based
    from course_lib.parallel.table.layout import coordinates, parameters_at
    from course_lib.parallel.table.mesh import make_mesh
    from course_lib.parallel.tensors.layers import ColumnParallelLinear, RowParallelLinear
    from course_lib.sequence_cut import SequenceCut
else:
    __getattr__, __dir__ = listed_names(__name__)
