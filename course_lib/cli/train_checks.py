"""What stops a training run before a rank starts: a model that cannot be, be shared, be loaded, or have room here."""

from __future__ import annotations

from torch import nn

from course_lib.cli import train_model, train_sharding
from course_lib.cli.compose import refuse
from course_lib.cli.machine import memory_bytes
from course_lib.cli.train_config import COMMAND, TrainRun
from course_lib.costs.model.parameters import expert_parameters, model_parameters
from course_lib.models.registered import check_attention, check_experts
from course_lib.parallel.pipelines.stages import layers_of
from course_lib.parallel.sequence.ulysses import check_heads
from course_lib.parallel.table.layout import Layout
from course_lib.parallel.tensors.cutting import AXIS, write_table
from course_lib.parallel.tensors.plan import plan_for
from course_lib.parallel.tensors.roles import causal_model
from course_lib.parallel.tensors.styles import styles_of
from course_lib.ranks.devices import Choice
from course_lib.training import folder_check
from course_lib.training.pretrained import Pretrained
from course_lib.training.torch_techniques import check_parts, check_vocabulary
from course_lib.units import format_bytes

_NF4_BYTES = 0.5  # of a weight in codes
_STATES_KEPT = {"sgd": 0, "adamw": 2, "adamw8bit": 0}  # numbers for each parameter, beside its weight and its gradient


def check_model(run: TrainRun, choice: Choice, ranks_here: int) -> None:
    """Refuse what `check_shape` and `check_weights` refuse, and a model whose states would take the machine down.

    Raises: ValueError naming also the memory.
    """
    check_shape(run)
    check_weights(run)
    if choice.device.type == "cuda":
        return  # torch refuses by itself, and nothing else suffers
    needed = int(numbers_needed(run, ranks_here) * run.precision.itemsize)
    if needed > memory_bytes():
        values = f"{run.model.name} on {ranks_here} rank{'s' * (ranks_here > 1)} needs {format_bytes(needed)}"
        rule = f"this machine has {format_bytes(memory_bytes())}"
        refuse(COMMAND, values, rule, "choose a smaller model, as model=tiny_llama")


def check_shape(run: TrainRun) -> None:
    """Refuse a model that our decoder cannot be, or the ranks cannot share.

    Raises: ValueError naming the field, the stages, or what tp ranks cannot share.
    """
    model = train_model.on_meta(run)
    if run.schedule is not None:
        _check_stages(run, len(layers_of(model)))
    if run.parallel.tp > 1:
        _check_parts(run, model)
    if run.values["context"] == "ulysses":
        check_heads(run.model.n_heads // run.parallel.tp, run.parallel.cp)
    if run.folder is not None and (found := causal_model(model)) is not None:
        if run.parallel.cp > 1:
            check_attention(found[1])
        if run.parallel.ep > 1:
            check_experts(found[1])


def check_weights(run: TrainRun) -> None:
    """Refuse a folder whose weights are not its model's; what is drawn, nobody has to look at.

    Raises: ValueError naming files or tensors.
    """
    if run.folder is not None and reads_weights(run):
        folder_check.check_weights(run.folder, train_model.base_on_meta(run))


def reads_weights(run: TrainRun) -> bool:
    """Whether it begins with a folder's weights."""
    return run.folder is not None and Pretrained(run.folder).has_weights


def _check_stages(run: TrainRun, layers: int) -> None:
    """Refuse more stages than layers; a decoder's embedding and its head are layers too."""
    assert run.schedule is not None
    stages = run.schedule.n_stages
    if stages > layers:
        values = f"{stages} stages, {run.model.name} has {layers} layers with its embedding and head"
        more = run.model.n_layers + stages - layers
        refuse(COMMAND, values, "every stage has a layer", f"choose fewer ranks, or give model.n_layers={more}")


def _check_parts(run: TrainRun, model: nn.Module) -> None:
    """Refuse what the ranks along tp cannot share; `model`, which is cut to see it, has no numbers."""
    layout, styles = Layout(model, {AXIS: run.parallel.tp}), styles_of(model, plan_for(model))
    if run.engine == "torch":
        check_vocabulary(styles)
        check_parts(model, styles, run.parallel.tp)
    write_table(model, layout, styles)


def numbers_needed(run: TrainRun, ranks_here: int) -> float:
    """How many numbers of weights, gradients and states this machine holds at once, at least.

    The ranks of a pipeline together keep the states of one model, and so do those that share its matrices, its experts,
    or weights, gradients and states by ZeRO. Beside frozen weights adapters are not counted.
    """
    model, parallel = run.model, run.parallel
    each: tuple[float, ...] = (1, 1, _STATES_KEPT[run.config.optimizer])
    if run.values["adapter"] is not None:
        each = (_NF4_BYTES / run.precision.itemsize if run.values["adapter"] == "qlora" else 1, 0, 0)
    experts = sum(layers * expert_parameters(kind) for layers, kind in model.layer_kinds if kind.n_experts > 1)
    others, parts, needed = model_parameters(model) - experts, parallel.pp * parallel.tp, 0.0
    shared = train_sharding.ranks_that_share(run.values)
    for kept, ranks in zip(each, shared, strict=True):
        needed += ranks_here * kept * others // (parts * ranks)
        needed += ranks_here * kept * experts // (parts * max(ranks, parallel.ep))
    return needed
