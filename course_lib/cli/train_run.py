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

from course_lib import comm
from course_lib.cli import (
    settings,
    train_activations,
    train_adapters,
    train_context,
    train_experts,
    train_less,
    train_model,
    train_precision,
    train_sharding,
)
from course_lib.cli.train_config import COMMAND, TrainRun
from course_lib.cli.train_metrics import Metrics
from course_lib.cli.train_settings import ACTIVATIONS, CONTEXT, EXPERTS, LESS, SHARDING
from course_lib.costs.model.parameters import model_parameters
from course_lib.errors import four_parts
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import RankError
from course_lib.ranks.devices import Choice
from course_lib.ranks.patience import more_time
from course_lib.training import series, step_folders
from course_lib.training.batches import Batches
from course_lib.training.cadence import Cadence, any_asks
from course_lib.training.loop import Step, tokens_of, train
from course_lib.training.own_seconds import OwnSeconds
from course_lib.training.pretrained import Pretrained
from course_lib.training.techniques import replicate, stages
from course_lib.training.tensor_technique import tensor
from course_lib.training.text import describe_text, load_text, read_text
from course_lib.training.torch_recompute import torch_recompute_layers
from course_lib.training.torch_techniques import torch_replicate, torch_tensor
from course_lib.training.trainer import Trainer
from course_lib.units import format_count

_REPLICATE = {"own": replicate, "torch": torch_replicate}  # by engine
_TENSOR = {"own": tensor, "torch": torch_tensor}
FIRST_STEP_S = 3600.0  # with what comes before it
STEP_S, _LONGEST_STEPS = 600.0, 10  # for a step and a checkpoint: as long as so many of the longest, at least so long
LINES = 20  # of progress at least, where they cannot overwrite each other


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


def make_trainer(run: TrainRun, device: torch.device, init: Callable[[Trainer], object]) -> Trainer:
    """The trainer that the run asks for: one technique for each degree above 1; `init` fills what a rank then has."""
    model = train_model.on_meta(run, device)
    if run.recompute != "none" and run.engine == "torch":
        torch_recompute_layers(model)
    last = [*train_precision.scaling(run.precision), *train_adapters.techniques(run.values)]
    fewer_bytes = train_activations.techniques(run.values, run.precision)
    if run.ranks == 1:
        with device:  # where a model that is on meta gets its memory
            apply = [*fewer_bytes, *train_experts.balancing(run.values), *last]
            return Trainer(model, run.config, apply=apply, init=init)
    parallel = run.parallel  # which counts the ranks along ep in dp; in the mesh they are an axis beside it
    across = run.values["across"]  # of the copies too
    clusters = {"across": across} if across > 1 else {}
    copies = parallel.dp // parallel.ep // across
    mesh = make_mesh(**clusters, pp=parallel.pp, dp=copies, ep=parallel.ep, cp=parallel.cp, tp=parallel.tp)
    form = {"sequence_parallel": run.sequence_parallel} if run.sequence_parallel else {}
    apply = [_TENSOR[run.engine](**form)] if parallel.tp > 1 else []
    apply += train_context.techniques(run.values)
    apply += train_experts.techniques(run.values, run.model, own=run.folder is None)
    apply += [stages(run.schedule)] if run.schedule is not None else []
    apply += [*fewer_bytes, *train_experts.balancing(run.values)]
    if parallel.zero_stage:
        apply += [train_sharding.technique(run.values)]
    elif parallel.shards > 1 and train_less.averages_exactly(run.values):
        lossy = train_less.read_lossy(run.values["lossy"])
        apply += [replicate(lossy=lossy) if lossy is not None else _REPLICATE[run.engine]()]
    apply += [*train_less.techniques(run.values), *last]
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
        has_checkpoint = run.out is not None and step_folders.latest(run.out) is not None
        if not has_checkpoint or run.values["adapter"] is not None:  # of which a checkpoint has the adapters alone
            train_model.init_of(run)(trainer)
        record = None if run.out is None else series.resume(trainer, run.out)
        if record is not None:
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
    how += [settings.said(group, run.values) for group in (CONTEXT, EXPERTS, ACTIVATIONS, SHARDING, LESS)]
    where = ", ".join(filter(None, how))
    text = describe_text() if run.text is None else run.text.name
    parameters = model_parameters(run.model)
    trained = train_adapters.in_words(train_model.on_meta(run), parameters, run.values) if run.values["adapter"] else ""
    return (
        f"{run.model.name}, {format_count(parameters)} parameters in {_formats(run)}{trained}; "
        f"engine={run.engine}, {where} ({choice.device.type}); {text}, {len(batches.text):,} tokens"
    )


def _formats(run: TrainRun) -> str:
    """What lasts, and what is computed where that is something else."""
    one = run.precision
    computed = f" (precision={run.values['precision']}: computed in {one.computed})" * (one.computed != one.lasting)
    return f"{one.lasting}{computed}"


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
