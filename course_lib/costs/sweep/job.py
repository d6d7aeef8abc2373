"""A training job: all that the memory of its GPUs depends on, said once for every command and every formula."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from course_lib.config import ModelConfig, ParallelConfig
from course_lib.config.parallel import CUT_IN_ALL, Piece, tp_widths
from course_lib.costs.model.activations import HALF
from course_lib.costs.model.adapters import Adapters
from course_lib.costs.model.conventions import DTYPE_BYTES, Convention, find_convention, with_optimizer
from course_lib.costs.sweep.software import Software
from course_lib.errors import four_parts
from course_lib.hardware import ClusterSpec, load_cluster
from course_lib.sequence_cut import ContextMethod

_Again = Literal["none", "attention", "operators", "half", "layers", "selective"]
_Schedule = Literal["gpipe", "1f1b", "interleaved", "zb-h1"]
_Offload = Literal["none", "optimizer", "all"]
RECOMPUTE: tuple[_Again, ...] = get_args(_Again)
SCHEDULES: tuple[_Schedule, ...] = get_args(_Schedule)
# Of published runs alone: without a pause between steps, since a rank begins the next step while others end this one.
# That takes an optimizer which steps before it knows the norm, and takes it back; nothing here has it.
PAUSELESS = ("zb-2p", "zb-v")
EVERY_SCHEDULE = (*SCHEDULES, *PAUSELESS)  # a run's code is the place here
OFFLOAD: tuple[_Offload, ...] = get_args(_Offload)
FORMATS = {  # that one computes in: bytes of a number, and of one that products read where these alone are shorter
    "bf16": (2, None),
    "fp32": (4, None),
    "fp64": (8, None),
    "autocast": (4, 2),
    "fp16": (4, 2),
}
FP8 = "fp8"  # the layers' products in 8 bits; what is kept is counted as bf16's, since no run says what it keeps
CODES_ARE_WHOLE = "64 weights in a row share a scale, and tp cuts rows"
_CHOICES = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "offload": OFFLOAD}


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is trained, how it is spread over GPUs, and what is assumed of the code that does it.

    A search takes `model`, `cluster`, `batch`, `sequence` and the assumptions, and varies the rest.
    Raises: ValueError for a batch or a sequence that nobody can train on, or a word that is not known.
    """

    model: ModelConfig
    sequence: int  # tokens, before context parallelism
    batch: int = 1  # sequences of one step, of all ranks
    cluster: ClusterSpec = field(default_factory=lambda: load_cluster("dgx_h100"), hash=False)
    parallel: ParallelConfig = ParallelConfig()
    microbatch: int | None = None  # sequences at a time; None: all that a rank has of the batch
    schedule: str = "1f1b"
    stages_per_rank: int = 1  # of the interleaved schedule
    recompute: str = "none"  # of a layer: nothing; scores; cheap operators; half of the layers; all; all but products
    group: int = 1  # layers that keep one input together, where layers are computed again
    adapters: Adapters | None = None  # what is trained beside frozen weights; None: these are trained
    nf4: bool = False  # whether the layers' frozen maps lie in codes
    loss_pieces: int = 1  # in which logits are made, lost, and made again
    software: Software = Software()
    convention: str | Convention = "megatron"  # bytes of weights, gradients, second copy and moments
    optimizer: str = "adamw"
    offload: str = "none"  # to the host's memory: the optimizer's states, or all that lasts
    itemsize: int = HALF  # bytes of a number that is computed with
    products: int | None = None  # and of one that products read, where autocast shortens it
    fused_norms: bool = True  # PyTorch's RMSNorm on a GPU; False: written out in Python
    keep_gathered: bool | None = None  # sequence parallelism keeps what it gathered; None: as the software does
    logit_bytes: int | None = None  # of each logit in the loss; None: as the software does
    gathered_units: int = 2  # that ZeRO-3 has whole at a time: this one and the next
    beside: bool = True  # count what no formula has: context, buffers, fragments
    reserve: float = 0.06  # of a GPU, that a plan leaves free: llm-foundry's runs at the edge are a third slower
    whole: Set[Piece] = CUT_IN_ALL  # what no rank along tp has less of than all
    context: ContextMethod = "ring"  # how attention meets keys of other ranks; Megatron's

    def __post_init__(self) -> None:
        for name in ("batch", "sequence", "stages_per_rank", "itemsize", "group", "loss_pieces"):
            if getattr(self, name) < 1:
                rule = "a step has sequences, and a sequence tokens" if name in ("batch", "sequence") else "it counts"
                raise ValueError(four_parts("plan", f"{name}={getattr(self, name)}", rule, f"give {name} >= 1"))
        for name, known in _CHOICES.items():
            if (value := getattr(self, name)) not in known:
                way_out = f"choose one of {', '.join(known)}"
                raise ValueError(four_parts("Job", f"{name}={value!r}", "not a known way", way_out))
        if self.nf4 and (self.adapters is None or self.parallel.tp > 1):
            values = f"nf4 with tp={self.parallel.tp}" if self.adapters else "nf4 without adapters"
            rule = CODES_ARE_WHOLE if self.adapters else "nobody trains codes"
            raise ValueError(four_parts("Job", values, rule, "give adapters and tp=1, or leave nf4 out"))
        self.model.check_sequence(self.sequence)
        _ = self.states  # refuses what is not known

    @property
    def room_bytes(self) -> int:
        """Memory of one GPU that a plan may fill: what a program can use, less the reserve."""
        return int(self.cluster.device.usable_bytes * (1 - self.reserve))

    @property
    def states(self) -> Convention:
        """Bytes that last of each parameter."""
        named = find_convention(self.convention) if isinstance(self.convention, str) else self.convention
        return with_optimizer(named, self.optimizer)

    @property
    def states_beside(self) -> Convention:
        """The same of what is trained beside frozen weights: in 32 bits at least."""
        least = DTYPE_BYTES["fp32"]
        return self.states if self.states.weights >= least else with_optimizer(find_convention("fp32"), self.optimizer)

    @property
    def sequences(self) -> int:
        """That a rank computes at a time."""
        return self.microbatch or -(-self.batch // self.parallel.dp)

    @property
    def n_microbatches(self) -> int:
        """Of one replica in a step; the last may have fewer sequences."""
        return max(1, -(-self.batch // (self.parallel.dp * self.sequences)))

    @property
    def gathers_once(self) -> bool:
        """Whether a block's gathered input stays until backward."""
        return self.software.is_torch if self.keep_gathered is None else self.keep_gathered

    @property
    def bytes_of_logit(self) -> int:
        """In the loss."""
        return self.software.logit_bytes if self.logit_bytes is None else self.logit_bytes

    @property
    def assumptions(self) -> dict[str, str]:
        """What is assumed of the code that trains, by the name under which commands take it."""
        shared = "none" if not self.parallel.sequence_parallel else "keep" if self.gathers_once else "regather"
        scores = "keeps scores" if self.software.timed_kernel == "scores" else "keeps no scores"
        found = {
            "convention": f"{self.states.name} ({self.states.assumes})",
            "optimizer": self.optimizer,
            "compute_dtype": self._computed,
            "sequence_parallel": shared,
            "recompute": self.recompute,
            "schedule": self.schedule,
            "stack": self.software.kind,
            "kernel": f"{self.software.kernel} ({scores})",
            "logits": f"{self.bytes_of_logit} bytes each",
            "offload": self.offload,
            "norms": "one kernel" if self.fused_norms else "in Python, with copies in fp32",
        }
        return found | ({"context": self.context} if self.parallel.cp > 1 else {})

    @property
    def _computed(self) -> str:
        """What it computes in, by the first word for these bytes."""
        if self.software.fp8:
            return FP8
        sizes = self.itemsize, self.products
        return next((name for name, known in FORMATS.items() if known == sizes), f"{self.itemsize} bytes")

    @property
    def evened(self) -> Job:
        """The job of a rank that has most of the features and experts that ranks cannot share evenly."""
        tp, ep, model = self.parallel.tp, self.parallel.ep, self.model
        sizes: dict[str, Any] = {name: -(-size // tp) * tp for name, size in tp_widths(model, self.whole).items()}
        return replace(self, model=replace(model, **sizes, n_experts=-(-model.n_experts // ep) * ep))
