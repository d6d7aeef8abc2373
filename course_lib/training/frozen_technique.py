"""The technique of checkpoints without a frozen model: adapters are a hundredth of it, and it never changes.

trainer = Trainer(add_lora(model), config, mesh=make_mesh(dp=2), apply=(fully_shard(), without_frozen()))
"""

from __future__ import annotations

from course_lib.training.setup import Setup, Technique


def without_frozen() -> Technique:
    """Let checkpoints hold what is trained, its states and the buffers; frozen weights stay as the trainer began.

    So whoever goes on begins with the same ones, from a seed or a folder, before the checkpoint is read.
    """

    def apply(setup: Setup) -> None:
        setup.begin("without_frozen")
        places = setup.local.layout.places
        setup.unsaved |= {name for name in setup.local.layout.parameters if not places[name].trained}

    return apply
