"""Questions about ranks that share one training: messages, averages, stages, matrices and states. Lessons 02 to 06."""

from __future__ import annotations

from course_lib.costs.comm.collectives import comm_time
from course_lib.costs.comm.ddp import fill_buckets
from course_lib.costs.comm.pipeline import pipeline_bubble_s, pipeline_in_flight
from course_lib.costs.comm.sharding import sent_numbers
from course_lib.costs.comm.traffic import CommTime
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.model.states import state_bytes
from course_lib.hardware import Link
from course_lib.split import split_sizes
from course_lib.units import GB, MB, MiB
from tools.exam.question import Question

_RANKS, _MEBIBYTES = (4, 8, 16, 32), (64, 128, 256, 512)
BILLION, MICRO, MILLI = 10**9, 1e-6, 1e-3


def _all_reduce(algorithm: str, ranks: int, mebibytes: int) -> CommTime:
    return comm_time("all_reduce", algorithm, world_size=ranks, length=mebibytes * MiB // 4, itemsize=4)


def _wire(latency_us: int, gigabytes_per_s: int) -> Link:
    return Link(
        name="a wire",
        alpha_s=latency_us * MICRO,
        bandwidth_bytes_per_s=gigabytes_per_s * GB,
        source="a question",
        date="drawn",
    )


def _ring_ms(ranks: int, megabytes: int, latency_us: int, gigabytes_per_s: int) -> float:
    found = comm_time("all_reduce", "ring", world_size=ranks, length=megabytes * MB // 4, itemsize=4)
    return found.time_s(_wire(latency_us, gigabytes_per_s)) / MILLI


def _bubble_share(ranks: int, microbatches: int) -> float:
    third = 1.0
    idle = pipeline_bubble_s(
        "1f1b",
        n_ranks=ranks,
        n_microbatches=microbatches,
        forward_s=third,
        backward_input_s=third,
        backward_weight_s=third,
    )
    return idle / (idle + microbatches * 3 * third)


def _interleaved_idle(ranks: int, stages: int, idle: int) -> float:
    """What is left of `idle` when each rank has so many stages."""
    third = idle / (3 * (ranks - 1))
    return pipeline_bubble_s(
        "interleaved",
        n_ranks=ranks,
        n_microbatches=ranks,
        stages_per_rank=stages,
        forward_s=third,
        backward_input_s=third,
        backward_weight_s=third,
    )


def _zero(stage: int, billions: int, ranks: int) -> float:
    return state_bytes(billions * BILLION, find_convention("zero"), zero_stage=stage, shards=ranks).total / GB


def _layer_sums(wide: int, tokens: int, ranks: int) -> float:
    """Two all-reduces forward and two backward, of tokens x wide numbers in bf16."""
    one = comm_time("all_reduce", "ring", world_size=ranks, length=tokens * wide, itemsize=2)
    return 4 * one.sent_bytes[0] / MiB


QUESTIONS = (
    Question(
        key="02a",
        text="{ranks} ranks add up a tensor of {mebibytes} MiB by a ring. How much does each rank send?",
        given={"ranks": _RANKS, "mebibytes": _MEBIBYTES},
        answer=lambda ranks, mebibytes: _all_reduce("ring", ranks, mebibytes).sent_bytes[0] / MiB,
        unit="MiB",
    ),
    Question(
        key="02b",
        text="{ranks} ranks add up a tensor by a ring. How many steps follow each other?",
        given={"ranks": (4, 6, 8, 12, 16, 64)},
        answer=lambda ranks: _all_reduce("ring", ranks, 64).steps,
        unit="steps",
    ),
    Question(
        key="02c",
        text="{ranks} ranks add up a tensor of {mebibytes} MiB the obvious way: all send to rank 0, which adds, and "
        "sends the sum to each. How much does rank 0 receive?",
        given={"ranks": _RANKS, "mebibytes": _MEBIBYTES},
        answer=lambda ranks, mebibytes: _all_reduce("naive", ranks, mebibytes).received_bytes[0] / MiB,
        unit="MiB",
    ),
    Question(
        key="02d",
        text="A message costs {latency_us} microseconds before its first byte, and the wire carries {gigabytes_per_s} "
        "GB/s. How long do {ranks} ranks take for an all-reduce of {megabytes} MB by a ring?",
        given={
            "latency_us": (5, 10, 50),
            "gigabytes_per_s": (10, 25, 50),
            "ranks": (4, 8, 16),
            "megabytes": (16, 64, 128),
        },
        answer=_ring_ms,
        unit="milliseconds",
    ),
    Question(
        key="02e",
        text="{ranks} ranks add up a tensor by halving and doubling. How many steps follow each other?",
        given={"ranks": (4, 8, 16, 32, 64, 128)},
        answer=lambda ranks: _all_reduce("halving_doubling", ranks, 64).steps,
        unit="steps",
    ),
    Question(
        key="02f",
        text="{ranks} ranks hold {mebibytes} MiB each, and an all-gather by a ring gives all of it to everybody. How "
        "much does each rank send?",
        given={"ranks": _RANKS, "mebibytes": (8, 16, 32)},
        answer=lambda ranks, mebibytes: (
            comm_time("all_gather", "ring", world_size=ranks, length=ranks, itemsize=mebibytes * MiB).sent_bytes[0]
            / MiB
        ),
        unit="MiB",
    ),
    Question(
        key="03a",
        text="{ranks} ranks train a model of {millions} million parameters with data parallelism, gradients in 32 bits "
        "and a ring. How much does each rank send in a step?",
        given={"ranks": _RANKS, "millions": (10, 25, 100, 350)},
        answer=lambda ranks, millions: 4 * sent_numbers("DDP", millions * 10**6, world_size=ranks).across / MB,
        unit="MB",
    ),
    Question(
        key="03b",
        text="One of {ranks} ranks has {lonely} rows in its batch and every other one has {many}. Each takes the mean "
        "of its own rows, and the gradients are averaged over ranks. By which factor does a row of the small batch "
        "count more than it should, if all rows of the step should count alike?",
        given={"ranks": (2, 4, 8), "lonely": (1, 2), "many": (4, 8)},
        answer=lambda ranks, lonely, many: (lonely + (ranks - 1) * many) / (ranks * lonely),
        unit="",
    ),
    Question(
        key="03c",
        text="A model has {layers} layers of {mebibytes} MiB of gradients each. A bucket is sent when it holds "
        "{bucket} MiB or more. How many messages does one step send?",
        given={"layers": (12, 24, 30), "mebibytes": (4, 6, 9), "bucket": (24, 36)},
        answer=lambda layers, mebibytes, bucket: len(
            fill_buckets([mebibytes * MiB // 4] * layers, bucket_bytes=bucket * MiB)
        ),
        unit="messages",
    ),
    Question(
        key="04a",
        text="{ranks} stages and {microbatches} micro-batches run by 1F1B, with even stages and free messages. Which "
        "share of a step is a rank idle?",
        given={"ranks": (4, 8, 16), "microbatches": (8, 16, 32, 64)},
        answer=_bubble_share,
        unit="",
    ),
    Question(
        key="04b",
        text="{ranks} stages and {microbatches} micro-batches run by 1F1B. Of how many micro-batches does rank {rank} "
        "remember activations at most? Ranks are counted from 0.",
        given={"ranks": (4, 8), "microbatches": (8, 16, 32), "rank": (0, 1, 2, 3)},
        answer=lambda ranks, microbatches, rank: pipeline_in_flight(
            "1f1b", n_ranks=ranks, n_microbatches=microbatches, rank=rank
        ),
        unit="micro-batches",
    ),
    Question(
        key="04c",
        text="On {ranks} stages a micro-batch takes {forward} ms forward and {backward} ms backward on each of them. "
        "How long is each rank idle in a step by GPipe?",
        given={"ranks": (4, 8), "forward": (1, 2, 3), "backward": (4, 6)},
        answer=lambda ranks, forward, backward: pipeline_bubble_s(
            "gpipe",
            n_ranks=ranks,
            n_microbatches=ranks,
            forward_s=forward,
            backward_input_s=backward / 2,
            backward_weight_s=backward / 2,
        ),
        unit="ms",
    ),
    Question(
        key="04d",
        text="A pipeline on {ranks} ranks runs by 1F1B with one stage a rank, and each rank is idle for {idle} ms of a "
        "step. Now each rank gets {stages} stages, interleaved. How long is it idle, if messages are free?",
        given={"ranks": (4, 8), "stages": (2, 3, 4), "idle": (12, 24, 36)},
        answer=_interleaved_idle,
        unit="ms",
    ),
    Question(
        key="05a",
        text="Tensor parallelism on {ranks} ranks: {tokens} tokens go through one decoder layer that is {wide} wide, "
        "in bf16, without sequence parallelism. How much does each rank send for it, forward and backward, by a ring?",
        given={"ranks": (2, 4, 8), "tokens": (2048, 4096), "wide": (2048, 4096, 8192)},
        answer=_layer_sums,
        unit="MiB",
    ),
    Question(
        key="05b",
        text="A matrix of {outputs} outputs and {inputs} inputs is cut by outputs over {ranks} ranks. How many weights "
        "has each rank?",
        given={"outputs": (4096, 11008, 14336), "inputs": (2048, 4096), "ranks": (2, 4, 8)},
        answer=lambda outputs, inputs, ranks: split_sizes(outputs, ranks)[0] * inputs,
        unit="weights",
    ),
    Question(
        key="05c",
        text="A model has {layers} layers. How many all-reduces does tensor parallelism make in its layers in one "
        "forward and one backward pass, without recomputation and without sequence parallelism?",
        given={"layers": (16, 24, 32, 40, 80)},
        answer=lambda layers: 4 * layers,
        unit="all-reduces",
    ),
    Question(
        key="06a",
        text="ZeRO-1 on {ranks} ranks, {billions} billion parameters, 16-bit weights and gradients and 12 bytes of "
        "optimizer states a parameter. How much does a rank keep?",
        given={"ranks": (8, 16, 64), "billions": (4, 8, 16)},
        answer=lambda ranks, billions: _zero(1, billions, ranks),
        unit="GB",
    ),
    Question(
        key="06b",
        text="ZeRO-2 on {ranks} ranks, {billions} billion parameters, 16-bit weights and gradients and 12 bytes of "
        "optimizer states a parameter. How much does a rank keep?",
        given={"ranks": (8, 16, 64), "billions": (4, 8, 16)},
        answer=lambda ranks, billions: _zero(2, billions, ranks),
        unit="GB",
    ),
    Question(
        key="06c",
        text="ZeRO-3 on {ranks} ranks, {billions} billion parameters, 16-bit weights and gradients and 12 bytes of "
        "optimizer states a parameter. How much does a rank keep between two steps?",
        given={"ranks": (8, 16, 64), "billions": (4, 8, 16)},
        answer=lambda ranks, billions: _zero(3, billions, ranks),
        unit="GB",
    ),
    Question(
        key="06d",
        text="FSDP in FULL_SHARD trains {billions} billion parameters on {ranks} ranks. All messages are in bf16, by a "
        "ring, and no unit stays whole. How much does each rank send in a step?",
        given={"billions": (4, 8, 16), "ranks": (8, 16, 64)},
        answer=lambda billions, ranks: 2 * sent_numbers("FULL_SHARD", billions * BILLION, world_size=ranks).inside / GB,
        unit="GB",
    ),
)
