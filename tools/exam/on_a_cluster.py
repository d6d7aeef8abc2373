"""Questions about several axes, long sequences, slow networks and long runs. Lessons 07 to 10, and 12."""

from __future__ import annotations

from course_lib.config import load_model
from course_lib.costs.comm.lossy_messages import top_k_bytes
from course_lib.costs.model.kv_cache import kv_cache_bytes
from course_lib.planner.reliability import Reliability, young_interval_s
from course_lib.sequence_cut import SequenceCut
from course_lib.units import MB, MiB
from tools.exam.question import Question

_HOUR_S, _MINUTE_S = 3600, 60


def _between_checkpoints(gpus: int, years: int, seconds: int) -> float:
    mtbf_s = years * 365 * 24 * _HOUR_S / gpus
    return young_interval_s(Reliability(mtbf_s=mtbf_s, checkpoint_s=seconds, restart_s=0)) / _MINUTE_S


def _pairs(length: int, ranks: int) -> float:
    """How many times the first rank's work the last one has, if a causal sequence is cut like a loaf."""
    cut = SequenceCut(length, ranks)
    owned = [cut.positions(rank) for rank in (0, ranks - 1)]
    first, last = (sum(position + 1 for position in some) for some in owned)
    return last / first


QUESTIONS = (
    Question(
        key="07b",
        text="Ranks are numbered so that tp changes first: on a mesh of dp and tp {tp}, which rank has the coordinates "
        "dp {dp} and tp {place}? All are counted from 0.",
        given={"tp": (4, 8), "dp": (1, 2, 3), "place": (0, 1, 2, 3)},
        answer=lambda tp, dp, place: dp * tp + place,
        unit="",
    ),
    Question(
        key="07c",
        text="Llama 3.1 8B generates text: 32 layers, 8 heads of keys and values, each 128 wide, in bf16. What do the "
        "keys and values of {batch} sequences of {sequence} tokens take on each of {tp} ranks of tensor parallelism?",
        given={"batch": (1, 4, 8), "sequence": (2048, 4096, 8192), "tp": (1, 2, 4, 8)},
        answer=lambda batch, sequence, tp: (
            kv_cache_bytes(load_model("llama3_1_8b"), batch=batch, sequence=sequence, itemsize=2, tp=tp) / MiB
        ),
        unit="MiB",
    ),
    Question(
        key="08a",
        text="A GPU fails once in {years} years on average, and a run on {gpus} of them stops at each failure. A "
        "checkpoint takes {seconds} seconds. How long should the run train between two checkpoints, by Young's "
        "formula?",
        given={"years": (5, 10), "gpus": (1024, 4096, 16384), "seconds": (30, 60, 120)},
        answer=_between_checkpoints,
        unit="minutes",
    ),
    Question(
        key="08b",
        text="A run on {gpus} GPUs has tp {tp} and pp {pp}, and each replica reads {microbatches} micro-batches of one "
        "sequence in a step. How many sequences does a step read?",
        given={"gpus": (256, 512, 1024), "tp": (4, 8), "pp": (4, 8), "microbatches": (8, 16, 32)},
        answer=lambda gpus, tp, pp, microbatches: gpus // (tp * pp) * microbatches,
        unit="sequences",
    ),
    Question(
        key="09a",
        text="A causal sequence of {length} tokens is cut like a loaf over {ranks} ranks. How many times as many pairs "
        "of a query and a key does the last rank compute as the first one?",
        given={"length": (16, 32, 64), "ranks": (2, 4, 8)},
        answer=_pairs,
        unit="",
    ),
    Question(
        key="09b",
        text="A layer has {experts} experts, and its router picks {picked} for each token. {tokens} tokens are read. "
        "How many rows does an expert get on average?",
        given={"experts": (8, 16, 64), "picked": (2, 4), "tokens": (1024, 4096)},
        answer=lambda experts, picked, tokens: tokens * picked / experts,
        unit="rows",
    ),
    Question(
        key="10a",
        text="Of {millions} million gradients a rank sends the largest percent: their values in 32 bits, and their "
        "places in 32 bits each. How much is that?",
        given={"millions": (10, 25, 100)},
        answer=lambda millions: top_k_bytes(millions * 10**6, 0.01, 4) / MB,
        unit="MB",
    ),
    Question(
        key="12a",
        text="{ranks} ranks time an all-reduce of {megabytes} MB at {milliseconds} ms. What is the bus bandwidth, as "
        "nccl-tests counts it?",
        given={"ranks": (4, 8, 16), "megabytes": (256, 512, 1024), "milliseconds": (4, 8, 16)},
        answer=lambda ranks, megabytes, milliseconds: 2 * (ranks - 1) / ranks * megabytes / milliseconds,
        unit="GB/s",
    ),
    Question(
        key="12b",
        text="A job dies {hours} hours after its last checkpoint, needs {minutes} minutes until it trains again, and "
        "has {gpus} GPUs. How many GPU-hours are lost?",
        given={"hours": (2, 3, 5), "minutes": (15, 30, 45), "gpus": (64, 256)},
        answer=lambda hours, minutes, gpus: (hours + minutes / 60) * gpus,
        unit="GPU-hours",
    ),
)
