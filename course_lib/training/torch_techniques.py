"""The same techniques by PyTorch's own wrappers, to use and to compare with."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from course_lib.training.setup import Setup, Technique


def torch_replicate(**options: Any) -> Technique:
    """What `replicate` does, by PyTorch's DistributedDataParallel; `options` are that wrapper's."""

    def apply(setup: Setup) -> None:
        setup.begin("replicate", "dp")
        setup.local.layout.averaged.add("dp")
        group = setup.local.group("dp")  # our own: on one that PyTorch watches its wrapper crashes (torch 2.13)
        setup.model = DistributedDataParallel(setup.model, process_group=group, **options)
        setup.engine.model = setup.model

    return apply
