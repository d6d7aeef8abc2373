"""Ways to share a model's training among ranks, each a few functions around a model that knows nothing of them.

`table` is what all of them stand on; `data`, `pipelines`, `tensors` and `sharding` are lessons 03 to 06.
"""
