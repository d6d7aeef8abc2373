"""One published run as the simulator sees it, read from a row of a file in the schema of published runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from course_lib.config import ModelConfig, ParallelConfig
from course_lib.costs.model.conventions import Convention
from course_lib.costs.model.flops import training_flops
from course_lib.costs.sweep.assembly import GpuMemory
from course_lib.costs.sweep.assumptions import job_fields
from course_lib.costs.sweep.job import PAUSELESS, Job
from course_lib.costs.sweep.software import UNKNOWN, Software
from course_lib.sim.constants import constant_names
from course_lib.sim.gpus import in_four_bits, machine_called
from course_lib.sim.machine import Machine
from course_lib.sim.memory import memory_of
from course_lib.sim.policies import EVERY_SCHEDULE, RECOMPUTE, Policies
from course_lib.sim.row_fields import need, number, part, whole
from course_lib.sim.row_model import model_of
from course_lib.sim.stacks import Words, words_of
from course_lib.units import GB, GiB, MiB

EVER_MORE = ("attention", "operators", "half", "layers")  # what an unsaid run may have recomputed
_MALFORMED = (TypeError, ValueError, KeyError, AttributeError, ZeroDivisionError, OverflowError, IndexError)
_STEPS = ("training", "memory", "memory_feasibility")
_PRINTED = re.compile(r"(\d+)\s?GB")
_UNITS = {"gib": GiB, "mib": 1000 * MiB}  # of what was printed as GB, thousands of MiB
_GAUGES = ("nvidia-smi", "max reserved")
_PLAIN_MFU = ("hfu adds", "model flops")  # conventions in which nothing recomputed counts
_WHOLE_LOGIT_BYTES = 14  # bf16 and fp32 logits, their log-soft-max, its gradient: a loss by torch's own functions
ROOM_OF_UNKNOWN = 0.85  # of a GPU: nobody knows what such a stack keeps beside tensors, and most that ran had it
_CONTEXT_BYTES = 1343 * MiB  # of a process whose kernels are loaded; transformers' guide "Model training anatomy"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run: what was run on what, how long a step took, and what the row does not say and is assumed."""

    name: str
    source: str
    model: ModelConfig
    gpu: str
    machine: Machine
    software: Software
    policy: Mapping[str, Any]  # fields of Policies, each one number
    recompute_stated: bool
    convention: str | Convention  # of `costs`, for the states
    code: Mapping[str, Any]  # more fields of `Job`, that the row says of the code that trains
    step_s: float | None
    memory_bytes: float | None
    out_of_memory: bool
    gauge: str  # what the measured bytes were read from: "nvidia-smi", "reserved", or "allocated" if nothing is said
    assumed: tuple[str, ...]
    said: frozenset[str] = frozenset()  # what the row says of the code, by name

    @property
    def assumptions(self) -> list[str]:
        """Of the code that trains: what the row does not say by name, but its words or nothing at all."""
        spread = ParallelConfig(tp=2, sequence_parallel=bool(self.policy["sequence_parallel"]))
        found = replace(self.job, parallel=spread, recompute=RECOMPUTE[self.policy["recompute"]]).assumptions
        return [f"{name}={value}" for name, value in found.items() if name not in {*self.said, "schedule"}]

    @property
    def policies(self) -> Policies:
        """The policy alone."""
        return Policies(**self.policy)

    def memory(self, recompute: str | None = None) -> GpuMemory:
        """Of the fullest GPU; with another recompute than the row's, if one is given."""
        policies = replace(self.policies, recompute=RECOMPUTE.index(recompute)) if recompute else self.policies
        return memory_of(self.job, policies)

    def seen(self) -> float:
        """What the row's gauge would show of the run's bytes, as it ran.

        PyTorch's allocated bytes have nothing of what is beside tensors, its reserved ones have no context of CUDA, and
        nvidia-smi has it all. A run that does not say what it recomputes recomputed so much that it fitted.
        """
        ways = [None] if self.recompute_stated else [None, *EVER_MORE]
        found = [self.memory(way) for way in ways]
        room = float(self.machine.memory_bytes)
        memory = next((one for one in found if float(one.total[0]) <= room), found[-1])
        beside = {"allocated": -float(memory.other[0]), "nvidia-smi": _CONTEXT_BYTES}.get(self.gauge, 0.0)
        return float(memory.total[0]) + beside

    @property
    def room_bytes(self) -> float:
        """What its tensors may take of a GPU."""
        return float(self.machine.memory_bytes) * (ROOM_OF_UNKNOWN if self.software.stack == UNKNOWN else 1)

    @property
    def job(self) -> Job:
        """What is trained, and what is assumed of the code that does it; how it is spread says the policy."""
        return Job(
            model=self.model,
            sequence=self.policy["sequence"],
            software=self.software,
            convention=self.convention,
            **self.code,
        )

    @property
    def gpus(self) -> int:
        """Ranks."""
        return int(self.policies.world_size)

    @property
    def configuration(self) -> tuple[str, ...]:
        """What repeated measurements have in common: source, model, GPU, number format."""
        return self.source, self.model.name, self.gpu, "fp8" if self.software.fp8 else "16 bits"


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A row that cannot be predicted, and why."""

    name: str
    source: str
    reason: str


def read_run(row: Any) -> Run | Unreadable:
    """A run, or why there is none; never an exception."""
    name, source = (str(row.get(key) or "") if isinstance(row, Mapping) else "" for key in ("id", "source_key"))
    if not isinstance(row, Mapping):
        return Unreadable(name=name, source=source, reason=f"a row is an object of fields, not {type(row).__name__}")
    if (kind := row.get("kind") or "training") not in _STEPS:
        return Unreadable(name=name, source=source, reason=f"of the kind {kind}, which is no training step")
    try:
        return _run(name, source, row)
    except _MALFORMED as error:
        said = str(error) if isinstance(error, ValueError) else f"malformed: {type(error).__name__}: {error}"
        return Unreadable(name=name, source=source, reason=said.replace("\n", " "))


def _run(name: str, source: str, row: Mapping[str, Any]) -> Run:
    assumed: list[str] = []
    hardware, measured = part(row, "hardware"), part(row, "measured", optional=True)
    gpu, node = str(hardware.get("gpu") or ""), whole(hardware, "gpus_per_node", optional=True)
    machine, unsaid = machine_called(gpu, node, str(hardware.get("interconnect") or ""))
    assumed += unsaid
    sequence = need(whole(part(row, "batch"), "seq"), "batch.seq")
    model = model_of(part(row, "model"), sequence, assumed)
    parallel = part(row, "parallel")
    words = words_of(row, generation=machine.generation, tp=whole(parallel, "tp", optional=True) or 1)
    constant_names(machine.generation, words.software)  # refuses a number format that nobody has timed there
    if words.four_bits:
        machine = in_four_bits(machine, gpu)
        assumed.append("products of 4 bits reach the share of their peak that those of FP8 do")
    said = part(row, "code", optional=True)
    code = {"fused_norms": not words.plain_norms} | job_fields(said)
    policy = _policy(row, hardware, parallel, words, model.n_layers, assumed)
    if shared := said.get("sequence_parallel"):
        policy["sequence_parallel"] = shared != "none" and policy["tp"] > 1
    if words.whole_logits and policy["tp"] > 1 and not said:
        code["logit_bytes"] = _WHOLE_LOGIT_BYTES * policy["tp"]  # each of the ranks that share the head has them all
        assumed.append("every rank along tp makes all logits")
    tokens = policy["dp"] * policy["micro_batch"] * policy["n_microbatches"] * sequence
    return Run(
        name=name,
        source=source,
        model=model,
        gpu=gpu,
        machine=machine,
        software=code.pop("software", words.software),
        policy=policy,
        recompute_stated=words.recompute is not None,
        convention=code.pop("convention", words.convention),
        code=code,
        step_s=_step_s(row, measured, model, policy, tokens, machine),
        memory_bytes=_memory_bytes(measured, gpu),
        out_of_memory=measured.get("oom") is True,
        gauge=next((one for one in _GAUGES if one in str(measured.get("mem_kind") or "")), "allocated"),
        assumed=(*assumed, *words.assumed, *(() if words.recompute else ("no recompute",))),
        said=frozenset(said),
    )


def _memory_bytes(measured: Mapping[str, Any], gpu: str) -> float | None:
    """The measured peak; no more than the GPU has."""
    peak_gb = number(measured, "peak_mem_gb")
    if not peak_gb:
        return None
    unit = next((size for name, size in _UNITS.items() if name in str(measured.get("mem_unit") or "").lower()), GB)
    printed = _PRINTED.search(gpu)
    if printed and peak_gb * unit > int(printed[1]) * GiB:
        raise ValueError(f"measured {peak_gb:g} GB are more than a GPU of {printed[1]} GB has")
    return peak_gb * unit


def _policy(
    row: Mapping[str, Any],
    hardware: Mapping[str, Any],
    parallel: Mapping[str, Any],
    words: Words,
    layers: int,
    assumed: list[str],
) -> dict[str, Any]:
    """The degrees; dp follows from the GPUs, and micro-batches from the global batch."""
    tp = need(whole(parallel, "tp"), "parallel.tp")
    pp = need(whole(parallel, "pp"), "parallel.pp")
    cp = whole(parallel, "cp", optional=True) or 1
    ep = whole(parallel, "ep", optional=True) or 1
    virtual = _stages_per_rank(row, parallel, layers, pp, assumed)
    schedule = _schedule(parallel, pp, virtual)
    dp = _replicas(hardware, parallel, tp, pp, cp, assumed)
    if pp * virtual > layers + 2:  # embedding and head may stand for a layer each
        raise ValueError(f"a pipeline of pp={pp} and its virtual stages are more than {layers} layers")
    micro = need(whole(part(row, "batch"), "micro"), "batch.micro")
    if pp > 1 and parallel.get("vpp") is None and virtual == 1:
        assumed.append("1F1B with one stage on each rank")
    return {
        "dp": dp,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "etp": whole(parallel, "etp", optional=True) or 1,
        "zero_stage": words.zero_stage,
        "shards": min(words.shards or dp * cp, dp * cp),
        "sequence_parallel": words.sequence_parallel and tp > 1,
        "micro_batch": micro,
        "n_microbatches": _microbatches(row, dp, micro, pp, assumed),
        "sequence": need(whole(part(row, "batch"), "seq"), "batch.seq"),
        "recompute": RECOMPUTE.index(words.recompute or "none"),
        "schedule": EVERY_SCHEDULE.index(schedule),
        "stages_per_rank": {"interleaved": virtual, "zb-v": 2}.get(schedule, 1),
    }


def _stages_per_rank(
    row: Mapping[str, Any], parallel: Mapping[str, Any], layers: int, pp: int, assumed: list[str]
) -> int:
    """As stated; an interleaved schedule without a number has a layer in each stage, as Llama 3 says of its own."""
    stated = whole(parallel, "vpp", optional=True)
    if stated is None and pp > 1 and "interleaved schedule" in str(row.get("notes") or "").lower():
        assumed.append("interleaved stages of one layer")
        return max(1, (layers + 2) // pp)
    return stated or 1


def _schedule(parallel: Mapping[str, Any], pp: int, virtual: int) -> str:
    """The schedule of a pipeline by its published name; unsaid, 1F1B, interleaved where ranks have several stages."""
    named = str(parallel.get("schedule") or "").lower()
    if named in ("zb-1p", "zb-h1"):
        return "zb-h1"
    if named in PAUSELESS and pp > 1:
        return named
    if named not in ("", "1f1b", "1f1b-i", "interleaved", "gpipe", "afab"):
        raise ValueError(f"the schedule {named} has no formula here")
    if named in ("gpipe", "afab") and pp > 1:
        return "gpipe"
    return "interleaved" if virtual > 1 and pp > 1 else "1f1b"


def _replicas(
    hardware: Mapping[str, Any], parallel: Mapping[str, Any], tp: int, pp: int, cp: int, assumed: list[str]
) -> int:
    """dp as stated, or what the GPUs leave; both must agree."""
    gpus, dp = whole(hardware, "gpus", optional=True), whole(parallel, "dp", optional=True)
    if dp is None:
        gpus = need(gpus, "parallel.dp or hardware.gpus")
        if gpus % (tp * pp * cp):
            raise ValueError(f"tp={tp} x pp={pp} x cp={cp} do not divide {gpus} GPUs")
        dp = gpus // (tp * pp * cp)
        assumed.append(f"dp {dp} from the GPUs")
    if gpus is not None and dp * tp * pp * cp != gpus:
        raise ValueError(f"dp={dp} x tp={tp} x pp={pp} x cp={cp} is {dp * tp * pp * cp}, not {gpus} GPUs")
    return dp


def _microbatches(row: Mapping[str, Any], dp: int, micro: int, pp: int, assumed: list[str]) -> int:
    batch = whole(part(row, "batch"), "global", optional=True)
    if batch is None:
        if pp > 1:
            raise ValueError("lacks batch.global, without which a pipeline's bubble is not known")
        assumed.append("one micro-batch in a step")
        return 1
    if batch % (dp * micro):
        raise ValueError(f"dp={dp} x micro-batch {micro} does not divide the global batch {batch}")
    return batch // (dp * micro)


def _step_s(
    row: Mapping[str, Any],
    measured: Mapping[str, Any],
    model: ModelConfig,
    policy: Mapping[str, Any],
    tokens: int,
    machine: Machine,
) -> float | None:
    """The measured step: as published, else from tokens or sequences a second, else from FLOP/s as the row counts."""
    gpus = policy["dp"] * policy["tp"] * policy["pp"] * policy["cp"]
    if step := number(measured, "step_time_s"):
        return step
    if per_gpu := number(measured, "tokens_per_s_per_gpu"):
        return tokens / (per_gpu * gpus)
    if per_s := number(measured, "samples_per_s"):
        return tokens / policy["sequence"] / per_s
    if per_gpu := number(measured, "samples_per_s_per_gpu"):
        return tokens / policy["sequence"] / (per_gpu * gpus)
    said = str(row.get("flops_convention") or "").lower()
    repeated = RECOMPUTE[policy["recompute"]] == "layers" and ("recompute" in said or "hardware" in said)
    causal = "halved" in said and "not halved" not in said
    flops = tokens * training_flops(
        model, sequence=policy["sequence"], recompute="full" if repeated else "none", causal=causal
    )
    if teraflops := number(measured, "tflops_per_gpu"):
        return flops / (teraflops * 1e12 * gpus)
    if (share := number(measured, "mfu")) and any(words in said for words in _PLAIN_MFU):
        plain = tokens * training_flops(model, sequence=policy["sequence"])
        return plain / (share / 100 * float(machine.bf16_flops_per_s) * gpus)
    return None
