"""What a training run is asked to do: name=value overrides, composed by Hydra with the presets, then checked."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override

from course_lib import presets
from course_lib.cli import (
    settings,
    train_activations,
    train_adapters,
    train_context,
    train_experts,
    train_less,
    train_precision,
    train_sharding,
)
from course_lib.cli.compose import compose_values, parse_overrides, path_given, refuse
from course_lib.cli.recompute_words import read_recompute
from course_lib.cli.train_precision import Precision
from course_lib.cli.train_settings import MODELS, PIPELINE, TRAIN
from course_lib.config import ModelConfig, ParallelConfig, TrainConfig, parse_model
from course_lib.parallel.tensors.region import SequenceParallel
from course_lib.ranks.places import check_world_size
from course_lib.schedules import Schedule, make_schedule
from course_lib.training.cadence import Every
from course_lib.training.learning_rate import LearningRate
from course_lib.training.pretrained import Pretrained

COMMAND = train_sharding.COMMAND
OPTIONS = settings.defaults(TRAIN)
KEYS = settings.names(TRAIN)
_PIPELINE = settings.names([PIPELINE])  # only with pp > 1; None: what `_pipeline` chooses
_WHOLE = {"tp": 1, "ep": 1, "zero_stage": 0}  # up to which every rank has a tensor or has none of it
_MOST_INSTRUCTIONS = 2**20  # about as many a schedule has of a kind
_RANKS = ("dp", "pp", "cp", "tp")  # their product; ep is counted inside dp

ConfigStore.instance().store(name=COMMAND, node=settings.composed(TRAIN))
_FOLDER = "folder_of_ones_own"  # what Hydra composes in the place of a preset
for _name in presets.names("tiny"):
    ConfigStore.instance().store(group="model", name=_name, node=presets.read("tiny", _name))


@dataclass(frozen=True, kw_only=True)
class TrainRun:
    """One training run, checked."""

    model: ModelConfig
    folder: Path | None  # of Hugging Face, that the model is from
    config: TrainConfig
    rate: LearningRate
    parallel: ParallelConfig
    engine: str
    schedule: Schedule | None  # of a pipeline
    recompute: str  # a word of `recompute_words`
    group: int  # layers that keep one input together
    sequence_parallel: SequenceParallel | None
    steps: int
    batch: int
    sequence: int
    precision: Precision
    seed: int
    text: Path | None
    out: Path | None
    every: Every
    values: Mapping[str, Any]  # the composition that all the others come from
    overrides: tuple[str, ...]  # that it was composed of

    @property
    def ranks(self) -> int:
        """Processes that train."""
        return self.parallel.world_size

    def as_yaml(self) -> str:
        """The exact configuration, under the command that gives it."""
        command = shlex.join(["python", "-m", "course_lib", COMMAND, *self.overrides]).replace("\n", "\n# ")
        return f"# {command}\n{yaml.safe_dump(dict(self.values), sort_keys=False, default_flow_style=None, width=120)}"


def read_train(overrides: Sequence[str], check_ranks: Callable[[int], object] = check_world_size) -> TrainRun:
    """The run that name=value overrides ask for; `check_ranks` refuses a number of ranks that cannot be had.

    Raises: ValueError for what Hydra cannot compose, an unknown name, or an illegal value.
    """
    lines = [
        _chosen(override)
        for override in parse_overrides(COMMAND, "a training run", overrides, keys=KEYS, groups=("model",))
    ]
    values = compose_values(COMMAND, lines, typed=overrides)
    settings.check_kinds(COMMAND, TRAIN, values)
    if not 0 <= values["seed"] < 2**32:
        refuse(COMMAND, f"seed={values['seed']}", "a seed has 32 bits", "give 0 <= seed < 4294967296")
    parallel = ParallelConfig(**{name: values[name] for name in (*_RANKS, "ep", "zero_stage")})
    check_ranks(parallel.world_size)
    _check_batch(values)
    _check_sequence_parallel(values)
    _check_codes(values)
    train_context.complete(values)
    train_sharding.complete(values)
    train_less.check(values)
    precision = train_precision.check(values)
    train_adapters.complete(values)
    schedule = _pipeline(values)
    model, folder = _model(values)
    if folder is not None and values["adapter"] is not None:  # which are nothing without the weights beside them
        values["model"] = {"folder": str(folder), "weights": Pretrained(folder).mark()}
    model.check_sequence(values["sequence"])
    train_experts.check(values, model, folder)
    recompute, group = read_recompute(COMMAND, values["recompute"])
    train_activations.check(values, folder)
    return TrainRun(
        model=model,
        folder=folder,
        config=_train_config(values),
        rate=_rate(values),
        parallel=parallel,
        schedule=schedule,
        precision=precision,
        recompute=recompute,
        group=group,
        text=None if values["text"] is None else path_given(COMMAND, "text", values["text"]),
        out=_folder(values["out"]),
        every=_every(values["checkpoint_every"]),
        values=values,
        overrides=tuple(overrides),
        **{name: values[name] for name in ("engine", "sequence_parallel", "steps", "batch", "sequence", "seed")},
    )


def _chosen(override: Override) -> str:
    """The override for Hydra; for a folder in the place of a preset there is a preset that names it.

    Raises: ValueError if there is neither.
    """
    if override.key_or_group != "model" or (name := override.value()) in MODELS:
        return str(override.input_line)
    folder = path_given(COMMAND, "model", name)
    if not folder.is_dir():
        rule, way_out = "there is no such model, and no such folder", f"choose one of {', '.join(MODELS)}, or a folder"
        refuse(COMMAND, f"model={name!r}", rule, way_out)
    ConfigStore.instance().store(group="model", name=_FOLDER, node={"folder": str(folder)})
    return f"model={_FOLDER}"


def _model(values: Mapping[str, Any]) -> tuple[ModelConfig, Path | None]:
    """The shape, and the folder that it is from, if it is from one."""
    model = values["model"]
    if "folder" not in model:
        return parse_model(model).config, None
    folder, fields = Path(model["folder"]), [f"model.{name}={x}" for name, x in model.items() if name != "folder"]
    if fields:
        way_out = "leave it out, or change config.json"
        refuse(COMMAND, f"{fields[0]} with model={str(folder)!r}", "the folder says its model's shape", way_out)
    if values["pp"] > 1:
        rule, way_out = "pipelines here are of the course's own decoder", "choose pp=1, with dp or tp"
        refuse(COMMAND, f"model={str(folder)!r} with pp={values['pp']}", rule, way_out)
    if values["sequence_parallel"] is not None:
        given = f"model={str(folder)!r} with sequence_parallel={values['sequence_parallel']}"
        refuse(COMMAND, given, "the course's own decoder cuts the sequence between its blocks", "leave it out")
    return Pretrained(folder).shape(), folder


def check_started(ranks: int, started: int) -> None:
    """The degrees fit the ranks that torchrun started."""
    if ranks != started:
        rule = f"torchrun started {started}"
        way_out = f"give degrees whose product is {started}, as dp={started}, or torchrun --nproc-per-node {ranks}"
        refuse(COMMAND, f"{' x '.join(_RANKS)} = {ranks}", rule, way_out)


def _check_batch(values: Mapping[str, Any]) -> None:
    """Every share of the batch has a sequence."""
    dp, batch = values["dp"], values["batch"]
    if batch < dp:
        refuse(COMMAND, f"batch={batch} with dp={dp}", "every rank needs a sequence", f"give batch >= {dp}, or less dp")


def _check_sequence_parallel(values: Mapping[str, Any]) -> None:
    """Ranks that share matrices share the sequence too, if that is asked for, and each has a position."""
    kept, tp, cp, sequence = (values[name] for name in ("sequence_parallel", "tp", "cp", "sequence"))
    if kept is None:
        return
    given = f"sequence_parallel={kept}"
    if tp == 1:
        way_out = "leave sequence_parallel out, or give tp >= 2"
        refuse(COMMAND, f"{given} with tp=1", "the ranks that share matrices share the sequence", way_out)
    if values["engine"] == "torch" and kept != "keep":
        rule = "PyTorch keeps a block's gathered input until backward"
        refuse(COMMAND, f"engine=torch with {given}", rule, "choose engine=own, or sequence_parallel=keep")
    if sequence // cp < tp:
        ranks = f"tp={tp}" if cp == 1 else f"cp={cp}, tp={tp}"
        way_out = f"give sequence >= {cp * tp}, or less tp"
        refuse(COMMAND, f"sequence={sequence} with {ranks} and {given}", "every rank needs a position", way_out)


def _check_codes(values: Mapping[str, Any]) -> None:
    """Moments in codes are those of whole tensors."""
    cut = next(
        (f"{axis}={values[axis]}" for axis in ("tp", "ep", "zero_stage") if int(values[axis]) > _WHOLE[axis]), ""
    )
    if values["optimizer"] == "adamw8bit" and cut:
        rule, way_out = "256 moments in a row share a scale, and ranks would cut rows", "choose dp, pp or cp, or adamw"
        refuse(COMMAND, f"optimizer=adamw8bit with {cut}", rule, way_out)


def _pipeline(values: dict[str, Any]) -> Schedule | None:
    """The schedule of a pipeline; unsaid: 1F1B, as many micro-batches as ranks, as few stages as the schedule takes."""
    given = {name: values[name] for name in _PIPELINE if values[name] is not None}
    pp, name = values["pp"], given.get("schedule", "1f1b")
    if pp == 1:
        for name, value in given.items():
            way_out = f"leave {name} out, or give pp >= 2"
            refuse(COMMAND, f"{name}={value} with pp=1", "it belongs to a pipeline", way_out)
        return None
    if values["engine"] == "torch":
        rule, way_out = "PyTorch's engine trains along dp and tp here", "choose engine=own, or pp=1"
        refuse(COMMAND, f"engine=torch with pp={pp}", rule, way_out)
    values |= {"schedule": name, "microbatches": pp, "stages_per_rank": 1 + (name == "interleaved"), **given}
    if (entries := pp * values["microbatches"] * values["stages_per_rank"]) > _MOST_INSTRUCTIONS:
        parts = f"pp={pp} x microbatches={values['microbatches']} x stages_per_rank={values['stages_per_rank']}"
        rule = f"their lists would have {entries} forwards, and {_MOST_INSTRUCTIONS} can be listed"
        refuse(COMMAND, parts, rule, "give fewer of them")
    schedule = make_schedule(name, pp, values["microbatches"], stages_per_rank=values["stages_per_rank"])
    if values["accumulation"] != 1:
        rule, way_out = "a pipeline accumulates over its micro-batches", "leave accumulation out, and give microbatches"
        refuse(COMMAND, f"accumulation={values['accumulation']} with pp={pp}", rule, way_out)
    _check_microbatches(values["batch"], values["dp"], values["microbatches"])
    return schedule


def _check_microbatches(batch: int, dp: int, microbatches: int) -> None:
    """All micro-batches of all pipelines have equally many sequences."""
    parts = dp * microbatches
    if batch % parts:
        pipelines = f" on {dp} pipelines" if dp > 1 else ""
        way_out = f"give batch={(batch // parts + 1) * parts}"
        if batch % dp == 0:
            way_out += f", or microbatches that divide {batch // dp}"
        rule = "all micro-batches have equally many sequences"
        refuse(COMMAND, f"batch={batch} in {microbatches} micro-batches{pipelines}", rule, way_out)


def _train_config(values: Mapping[str, Any]) -> TrainConfig:
    return TrainConfig(
        optimizer=values["optimizer"],
        learning_rate=float(values["lr"]),
        weight_decay=float(values["weight_decay"]),
        max_norm=None if values["max_norm"] is None else float(values["max_norm"]),
        accumulation=values["accumulation"],
    )


def _rate(values: Mapping[str, Any]) -> LearningRate:
    return LearningRate(
        peak=float(values["lr"]),
        steps=values["steps"],
        warmup_steps=values["warmup_steps"],
        schedule=values["lr_schedule"],
    )


def _folder(out: Any) -> Path | None:
    """Where the results go."""
    if out is None:
        return None
    path = path_given(COMMAND, "out", out)
    if not path.parent.is_dir():
        refuse(COMMAND, f"out={out!r}", f"there is no folder {str(path.parent)!r}", "make it, or name another")
    return path


def _every(value: Any) -> Every:
    """When to write a checkpoint: a number of steps, or of minutes as 10min."""
    if value is None:
        return Every()
    if type(value) is int and value > 0:
        return Every(steps=value)
    minutes = re.fullmatch(r"(\d+(?:\.\d+)?)min", str(value))
    if minutes is None or not float(minutes[1]):
        rule = "it is a number of steps, or of minutes"
        refuse(COMMAND, f"checkpoint_every={value}", rule, "write it as checkpoint_every=100, =10min or =null")
    return Every(seconds=60 * float(minutes[1]))
