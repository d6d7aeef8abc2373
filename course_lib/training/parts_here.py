"""What of a model is on this rank: all of it, or under a pipeline its stages' layers and perhaps the head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from course_lib.models.decoder import Decoder
from course_lib.parallel.pipelines.stages import DecoderStage
from course_lib.parallel.sharding.wrapping import blocks_of
from course_lib.training.pipeline_engine import PipelineEngine
from course_lib.training.setup import Setup


def runs_of_layers(setup: Setup) -> Iterator[list[nn.Module]]:
    """Layers that run one after the other: the model's, or those of each stage."""
    for part in _parts(setup):
        lists = [child for child in part.children() if isinstance(child, nn.ModuleList | nn.ModuleDict)]
        if not lists or any(map(len, lists)):  # a stage may have the embedding alone
            yield [part.get_submodule(name) for name in blocks_of(part)]


def head_here(setup: Setup) -> nn.Module | None:
    """A decoder's head, on the ranks that have it."""
    heads = [part.head for part in _parts(setup) if isinstance(part, Decoder | DecoderStage)]
    return next((head for head in heads if head is not None), None)


def _parts(setup: Setup) -> Iterable[nn.Module]:
    engine = setup.engine
    return engine.pipeline.stages.values() if isinstance(engine, PipelineEngine) else (setup.model,)
