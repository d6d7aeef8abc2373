"""Writes the README's pictures, made by the library like every other: one that moves, and four stills.

A test finds drift in all but the ladder's, whose numbers are measured when it is drawn.
"""

from __future__ import annotations

from course_lib.config import ModelConfig, TrainConfig
from course_lib.models.decoder import Decoder
from course_lib.parallel.table.mesh import make_mesh
from course_lib.schedules import make_schedule
from course_lib.training.batches import Batches
from course_lib.training.setup import Technique
from course_lib.training.techniques import replicate
from course_lib.training.text import load_text
from course_lib.training.tokenizer import load_tokens
from course_lib.training.trainer import Trainer
from course_lib.verify.museum.data_parallel import BUGS
from course_lib.verify.museum.falls import fall
from course_lib.verify.museum.wild import wild_falls
from course_lib.viz.ink.drawing import Drawing
from course_lib.viz.memory.moving_zero import animate_zero_stages
from course_lib.viz.proof.museum import plot_museum
from course_lib.viz.schedules.moving import animate_schedules
from course_lib.viz.wires.moving_ring import animate_ring
from tools.paths import ROOT

FIGURE, MEMORY, SCHEDULES, LADDER, WILD = (
    ROOT / f"notebooks/{name}.svg" for name in ("ring_all_reduce", "memory", "schedules", "ladder", "wild")
)
_RANKS, _VOCABULARY = 4, 512
_SHOWN = {  # bugs that a reader may know, one for each of these rungs
    "weights start different": "parameters_not_broadcast",
    "gradients are not divided": "summed",
    "gradients travel in bfloat16": "bf16_reduction",
    "a mean of means": "mean_of_means",
    "the norm over all ranks": "norm_over_ranks",
    "each rank clips alone": "clipped_before_averaging",
    "optimizer not loaded": "optimizer_not_loaded",
}
_MODEL = ModelConfig(
    name="small", hidden_size=64, n_layers=2, n_heads=4, n_kv_heads=2, ffn_size=176, vocab_size=512, tied=False
)


def picture() -> Drawing:
    """Return what the README shows first: a ring all-reduce on four ranks."""
    return animate_ring(4)


def memory() -> Drawing:
    """Return the stages of ZeRO on eight ranks, against one device's memory."""
    return animate_zero_stages(7.5, 8)


def schedules() -> Drawing:
    """Return four pipeline schedules on one axis."""
    names = {"GPipe": "gpipe", "1F1B": "1f1b", "ZB-H1": "zb-h1"}
    drawn = {name: make_schedule(kind, 4, 8) for name, kind in names.items()}
    return animate_schedules(drawn | {"Interleaved": make_schedule("interleaved", 4, 8, stages_per_rank=2)})


def ladder() -> Drawing:
    """Return where some bugs break the ladder: a small decoder that reads text on four ranks, as it trains here."""
    _, tokens = load_tokens(load_text(), _VOCABULARY)
    text = Batches(text=tokens, batch_size=16, sequence=32, ragged=True)

    def alone(config: TrainConfig) -> Trainer:
        return Trainer(Decoder(_MODEL), config)

    def on_ranks(config: TrainConfig, *bugs: Technique) -> Trainer:
        return Trainer(Decoder(_MODEL), config, mesh=make_mesh(dp=_RANKS), apply=(replicate(), *bugs))

    falls = {title: fall(BUGS[name], alone, on_ranks, text, world_size=_RANKS) for title, name in _SHOWN.items()}
    return plot_museum(falls)


def wild() -> Drawing:
    """Return where real releases broke the ladder, as far as they tell their losses."""
    subtitle = "and how far the loss was off meanwhile, where the release tells it"
    return plot_museum(wild_falls(), title="Bugs of real releases on the ladder", subtitle=subtitle)


if __name__ == "__main__":
    print(picture().save(FIGURE).relative_to(ROOT))
    for path, draw in ((MEMORY, memory), (SCHEDULES, schedules), (LADDER, ladder), (WILD, wild)):
        path.write_text(draw().still, encoding="utf-8")
        print(path.relative_to(ROOT))
