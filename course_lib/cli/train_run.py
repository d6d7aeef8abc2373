"""What a training run does on each rank, what it shows meanwhile, and what it leaves."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn

from course_lib import comm
from course_lib.cli import settings, train_activations, train_context, train_experts, train_model, train_sharding
from course_lib.cli.compose import refuse
from course_lib.cli.machine import memory_bytes
from course_lib.cli.train_config import COMMAND, TrainRun
from course_lib.cli.train_metrics import Metrics
from course_lib.cli.train_settings import ACTIVATIONS, CONTEXT, EXPERTS, SHARDING
from course_lib.costs.model.parameters import expert_parameters, model_parameters
from course_lib.errors import four_parts
from course_lib.models.registered import check_attention, check_experts
from course_lib.parallel.pipelines.stages import layers_of
from course_lib.parallel.sequence.ulysses import check_heads
from course_lib.parallel.table.layout import Layout
from course_lib.parallel.table.mesh import make_mesh
from course_lib.parallel.tensors.cutting import AXIS, write_table
from course_lib.parallel.tensors.plan import plan_for
from course_lib.parallel.tensors.roles import causal_model
from course_lib.parallel.tensors.styles import styles_of
from course_lib.ranks import RankError
from course_lib.ranks.devices import Choice
from course_lib.ranks.patience import more_time
from course_lib.training import folder_check, series
from course_lib.training.batches import Batches
from course_lib.training.cadence import Cadence, any_asks
from course_lib.training.loop import Step, tokens_of, train
from course_lib.training.own_seconds import OwnSeconds
from course_lib.training.pretrained import Pretrained
from course_lib.training.techniques import replicate, stages
from course_lib.training.tensor_technique import tensor
from course_lib.training.text import describe_text, load_text, read_text
from course_lib.training.torch_recompute import torch_recompute_layers
from course_lib.training.torch_techniques import check_parts, check_vocabulary, torch_replicate, torch_tensor
from course_lib.training.trainer import Trainer
from course_lib.units import format_bytes, format_count

_REPLICATE = {"own": replicate, "torch": torch_replicate}  # by engine
_TENSOR = {"own": tensor, "torch": torch_tensor}
FIRST_STEP_S = 3600.0  # with what comes before it
STEP_S, _LONGEST_STEPS = 600.0, 10  # for a step and a checkpoint: as long as so many of the longest, at least so long
LINES = 20  # of progress at least, where they cannot overwrite each other
_STATES_KEPT = {"sgd": 0, "adamw": 2}  # numbers for each parameter, beside its weight and its gradient


def make_batches(run: TrainRun) -> Batches:
    """The text in the model's tokens, cut as the run asks; a folder's own tokenizer makes them, if it has one.

    Raises: ValueError if the text is too short for that, not the expected one, or cannot be read.
    """
    text = text_of(run)
    own = None if run.folder is None else Pretrained(run.folder).tokens_of(text.decode("utf-8", "replace"))
    tokens = tokens_of(text, run.model.vocab_size) if own is None else own
    return batches_of(run, tokens)


def text_of(run: TrainRun) -> bytes:
    """What the run trains on.

    Raises: ValueError if it is not the expected one, or cannot be read.
    """
    return load_text() if run.text is None else read_text(run.text)


def batches_of(run: TrainRun, tokens: bytes | NDArray[np.integer]) -> Batches:
    """These tokens cut as the run asks.

    Raises: ValueError if they are too few for that.
    """
    return Batches(text=tokens, batch_size=run.batch, sequence=run.sequence, seed=run.seed)


def check_model(run: TrainRun, choice: Choice, ranks_here: int) -> None:
    """Refuse what `check_shape` and `check_weights` refuse, and a model whose states would take the machine down.

    Raises: ValueError naming also the memory.
    """
    check_shape(run)
    check_weights(run)
    if choice.device.type == "cuda":
        return  # torch refuses by itself, and nothing else suffers
    itemsize = getattr(torch, run.dtype).itemsize
    needed = numbers_needed(run, ranks_here) * itemsize
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
        folder_check.check_weights(run.folder, train_model.on_meta(run))


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


def numbers_needed(run: TrainRun, ranks_here: int) -> int:
    """How many numbers of weights, gradients and states this machine holds at once, at least.

    The ranks of a pipeline together keep the states of one model, and so do those that share its matrices, its experts,
    or weights, gradients and states by ZeRO.
    """
    model, parallel = run.model, run.parallel
    experts = sum(layers * expert_parameters(kind) for layers, kind in model.layer_kinds if kind.n_experts > 1)
    others, parts, needed = model_parameters(model) - experts, parallel.pp * parallel.tp, 0
    shared = train_sharding.ranks_that_share(run.values)
    for kept, ranks in zip((1, 1, _STATES_KEPT[run.config.optimizer]), shared, strict=True):
        needed += ranks_here * kept * others // (parts * ranks)
        needed += ranks_here * kept * experts // (parts * max(ranks, parallel.ep))
    return needed


def make_trainer(run: TrainRun, device: torch.device, init: Callable[[Trainer], object]) -> Trainer:
    """The trainer that the run asks for: one technique for each degree above 1; `init` fills what a rank then has."""
    model = train_model.on_meta(run, device)
    if run.recompute != "none" and run.engine == "torch":
        torch_recompute_layers(model)
    fewer_bytes = train_activations.techniques(run.values)
    if run.ranks == 1:
        with device:  # where a model that is on meta gets its memory
            apply = [*fewer_bytes, *train_experts.balancing(run.values)]
            return Trainer(model, run.config, apply=apply, init=init)
    parallel = run.parallel  # which counts the ranks along ep in dp; in the mesh they are an axis beside it
    mesh = make_mesh(pp=parallel.pp, dp=parallel.dp // parallel.ep, ep=parallel.ep, cp=parallel.cp, tp=parallel.tp)
    form = {"sequence_parallel": run.sequence_parallel} if run.sequence_parallel else {}
    apply = [_TENSOR[run.engine](**form)] if parallel.tp > 1 else []
    apply += train_context.techniques(run.values)
    apply += train_experts.techniques(run.values, run.model, own=run.folder is None)
    apply += [stages(run.schedule)] if run.schedule is not None else []
    apply += [*fewer_bytes, *train_experts.balancing(run.values)]
    if parallel.zero_stage:
        apply += [train_sharding.technique(run.values)]
    elif parallel.shards > 1:
        apply += [_REPLICATE[run.engine]()]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="plan_for")  # which `check_shape` has said, once for all ranks
        return Trainer(model, run.config, mesh=mesh, apply=apply, init=init)


def work(run: TrainRun, batches: Batches, choice: Choice, live: bool, asked: Callable[[], bool]) -> list[Step]:
    """Train on this rank, from the last checkpoint in `run.out` if there is one, and return all the run's steps.

    The first rank shows them and writes their metrics; all write checkpoints, the last of which has the trained model.
    If `asked` says so on any rank, all write a checkpoint after their step, and return fewer steps than the run has.
    Raises: ValueError, on all ranks, for a loss that is not finite or a checkpoint that cannot be read; OSError, on all
    ranks, for one that cannot be written.
    """
    first = not dist.is_initialized() or dist.get_rank() == 0
    torch.manual_seed(run.seed)
    with comm.settings(guard=False, ledger=False), _line_kept_open(first and live):
        trainer, steps = begun(run, choice.device)
        longest_s = 0.0
        metrics = Metrics(run, choice)
        if first and run.out is not None:
            metrics.begin(run.out, steps)
        cadence = Cadence(run.every, trainer.local.everyone, len(steps))
        own = OwnSeconds(trainer.local.everyone)
        with _writer(run, trainer) as writer:
            for step in train(trainer, batches, run.steps, done=len(steps), rate=run.rate):
                if writer is not None:
                    step = replace(step, own_s=own.told(step.number, step.own_s))
                steps.append(step)
                longest_s = max(longest_s, step.seconds)
                more_time(max(STEP_S, _LONGEST_STEPS * longest_s))
                if first and run.out is not None:
                    metrics.append(run.out, step)
                if first and (live or is_shown(step.number, run.steps)):
                    start, end = ("\r\x1b[K", "") if live else ("", "\n")
                    print(f"{start}{metrics.progress(step)}", end=end, flush=True)
                if writer is None or step.number == run.steps:
                    continue
                stops = any_asks(asked, trainer.local.everyone)
                if stops or cadence.is_due(step.number):
                    writer.save_step(step.number, [asdict(step) for step in steps])
                if stops:
                    break
            if writer is not None and len(steps) == run.steps:
                train_model.export(run, trainer, writer.run)  # first: with its last checkpoint a run is over
                writer.save_step(run.steps, [asdict(step) for step in steps])
    return steps


def _writer(run: TrainRun, trainer: Trainer) -> AbstractContextManager[series.Background | None]:
    """What writes the run's checkpoints, if it has a folder for them."""
    if run.out is None:
        return nullcontext()
    return series.Background(trainer, run.out, keep=run.values["keep_checkpoints"])


def begun(run: TrainRun, device: torch.device) -> tuple[Trainer, list[Step]]:
    """The trainer as the run's last checkpoint has it, with the steps until then; at the beginning there are none."""
    steps: list[Step] = []

    def init(trainer: Trainer) -> None:
        record = None if run.out is None else series.resume(trainer, run.out)
        if record is None:
            train_model.init_of(run)(trainer)
        else:
            steps.extend(_steps_of(record, run))

    return make_trainer(run, device, init), steps


def _steps_of(record: Any, run: TrainRun) -> list[Step]:
    """The steps that a checkpoint has noted."""
    try:
        return [Step(**step) for step in record]
    except TypeError as error:
        values, rule = f"a checkpoint in {str(run.out)!r}", f"its steps are none ({error})"
        raise series.CannotResume(four_parts(COMMAND, values, rule, "take another one, or train anew")) from None


def is_shown(number: int, steps: int) -> bool:
    """Whether this step has a line of its own: the first, the last, and every so many between."""
    return number in (1, steps) or number % max(1, steps // LINES) == 0


@contextmanager
def _line_kept_open(live: bool) -> Iterator[None]:
    """End the line that progress overwrites, however the run ends."""
    try:
        yield
    finally:
        if live:
            print(flush=True)


def heading(run: TrainRun, batches: Batches, choice: Choice) -> str:
    """What is trained, how, and on what."""
    how = [f"{run.parallel.in_words} on {run.ranks} ranks" if run.ranks > 1 else "one device"]
    if run.schedule is not None:
        stages, microbatches = run.schedule.n_stages, run.schedule.n_microbatches
        how.append(f"{run.schedule.name} with stages={stages} and microbatches={microbatches}")
    how += [settings.said(group, run.values) for group in (CONTEXT, EXPERTS, ACTIVATIONS, SHARDING)]
    where = ", ".join(filter(None, how))
    text = describe_text() if run.text is None else run.text.name
    return (
        f"{run.model.name}, {format_count(model_parameters(run.model))} parameters in {run.dtype}; "
        f"engine={run.engine}, {where} ({choice.device.type}); {text}, {len(batches.text):,} tokens"
    )


def failure_line(error: Exception) -> str:
    """One line: our own four-part errors as they are, others under their name; a rank's as if it were ours."""
    kind, text = _kind_and_text(error)
    if kind in ("ValueError", series.CannotResume.__name__):
        return text
    return f"{COMMAND}: {kind}: {' '.join(text.split())}"


def could_not_resume(error: Exception) -> bool:
    """Whether it was the last checkpoint that stopped the run, here or on a rank."""
    return _kind_and_text(error)[0] == series.CannotResume.__name__


def _kind_and_text(error: Exception) -> tuple[str, str]:
    if not isinstance(error, RankError):
        return type(error).__name__, str(error)
    if error.failure is None:
        return type(error).__name__, error.reason
    return error.failure.type, error.failure.text
