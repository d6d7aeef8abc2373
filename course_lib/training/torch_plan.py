"""What PyTorch's `parallelize_module` is told: the styles of a plan in its own, and what lies between the blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch import nn

from course_lib.models.decoder import Attention
from course_lib.parallel.tensors.region import SEQUENCE
from course_lib.parallel.tensors.styles import Style, head_size_of

_FEATURES = 2  # the dim of (B, S, H) that is cut inside a block; of (B, S, heads, D) that of heads


def parallel_plan(model: nn.Module, styles: Mapping[str, Style], *, sequence_parallel: bool) -> dict[str, Any]:
    """PyTorch's style of each module, of a decoder of ours or of `transformers`.

    A block's input is prepared once for all maps that read it, so its gradient is added up once. What lies between
    blocks is a tensor that every rank has whole, or under sequence parallelism a DTensor: only that one knows how long
    the sequence is of which a rank has some positions.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    between = Shard(SEQUENCE) if sequence_parallel else Replicate()
    leaving: dict[str, Any] = {"output_layouts": between, "use_local_output": not sequence_parallel}
    of_heads = partial(SequenceParallel, sequence_dim=_FEATURES, use_local_output=True)
    made: dict[Style, Callable[[], Any]] = {
        "column": ColwiseParallel,
        "row": partial(RowwiseParallel, **leaving),
        "vocabulary": partial(RowwiseParallel, input_layouts=Replicate(), **leaving),
        "logits": partial(ColwiseParallel, input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
        "full norm": of_heads,
        "shared": of_heads,
    }
    plan = {name: made[style]() for name, style in styles.items()}
    plan |= {name: _entrance(model.get_submodule(name), between) for name in _blocks(styles)}
    return plan | dict(_along_the_sequence(model, styles) if sequence_parallel else ())


def _blocks(styles: Mapping[str, Style]) -> list[str]:
    """The modules whose maps by column read one input."""
    return [*dict.fromkeys(name.rpartition(".")[0] for name, style in styles.items() if style == "column")]


def _entrance(block: nn.Module, between: Any) -> Any:
    """What makes a block's input whole; an attention takes angles too, and that of `transformers` all by name."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import PrepareModuleInput

    whole: Any = Replicate()
    if isinstance(block, Attention):
        return PrepareModuleInput(input_layouts=(between, None), desired_input_layouts=(whole, None))
    if head_size_of(block) is not None:
        by_name = {"hidden_states": between}, {"hidden_states": whole}
        return PrepareModuleInput(input_kwarg_layouts=by_name[0], desired_input_kwarg_layouts=by_name[1])
    return PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(whole,))


def _along_the_sequence(model: nn.Module, styles: Mapping[str, Style]) -> Iterator[tuple[str, Any]]:
    """What has parameters between the blocks: norms, and an embedding of positions, which counts them from 0."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import PrepareModuleOutput, SequenceParallel

    for name, module in model.named_modules():
        if name in styles or not list(module.parameters(recurse=False)):
            continue
        if isinstance(module, nn.Embedding):  # of (S, H), without a batch
            cut = {"output_layouts": Replicate(), "desired_output_layouts": Shard(SEQUENCE - 1)}
            yield name, PrepareModuleOutput(**cut, use_local_output=False)
        else:
            yield name, SequenceParallel(sequence_dim=SEQUENCE)
