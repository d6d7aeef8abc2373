"""The cure of the pipeline's sums divided by the number of micro-batches once for every stage, not once in all.

The last stage was right, the one before it learned at a quarter of the rate with four micro-batches, and the one before
that at a sixteenth.
"""

from wild import deepspeed_pipeline_sums as sums

EXHIBIT = {
    "library": "deepspeed",
    "links": ["deepspeedai/DeepSpeed#8152", "deepspeedai/DeepSpeed#8154"],
    "old": "deepspeed==0.19.2 hjson==3.1.0 py-cpuinfo==9.0.0 einops==0.8.2 msgpack==1.2.4",
    "mended": "deepspeed==0.19.8 hjson==3.1.0 py-cpuinfo==9.0.0 einops==0.8.2 msgpack==1.2.4",
    "dtype": "float32",  # in which it keeps its weights
    "ranks": 2,
    "rung": "gradients",
    "cause": "divided by micro-batches twice",
}
reference, parallel, batches = sums.reference, sums.parallel, sums.batches  # the same trainer
