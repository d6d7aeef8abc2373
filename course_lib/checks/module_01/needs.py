"""01.4: assess memory needs, after a public workshop."""

from __future__ import annotations

import random
from functools import partial
from math import ceil, nan

from course_lib.checks.kit.numbers import Given, NumberExercise, Question
from course_lib.config import ModelConfig
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.model.states import gpus_needed
from course_lib.costs.published.activations import workshop_activations
from course_lib.costs.published.parameters import workshop_parameters
from course_lib.hardware import load_device
from course_lib.units import GB, GiB

GPUS = 32  # among which the batch is asked
SHAPES = (  # in which no wrong way to count GPUs or sequences gives the right number
    (64, 9216, 72, 50280, 1024),
    (56, 8192, 64, 32100, 1024),
    (80, 8192, 64, 50280, 1024),
    (64, 9216, 72, 32100, 1024),
)


def given(seed: int) -> Given:
    """Layers L, width H, heads A, vocabulary V and positions S."""
    return SHAPES[0] if seed == 0 else random.Random(seed).choice(SHAPES)


def _model(L: float, H: float, A: float, V: float, S: float) -> ModelConfig:
    return ModelConfig(
        name="given",
        hidden_size=int(H),
        n_layers=int(L),
        n_heads=int(A),
        n_kv_heads=int(A),
        ffn_size=4 * int(H),
        vocab_size=int(V),
        max_sequence=int(S),
        tied=False,
    )


def _parameters(*shape: float) -> int:
    return workshop_parameters(_model(*shape))


def _states(convention: str, *shape: float) -> int:
    return find_convention(convention).bytes_per_parameter * _parameters(*shape)


def _sequence_bytes(*shape: float) -> int:
    return 2 * workshop_activations(_model(*shape), batch=1, sequence=int(shape[-1]))


def _needed(device: str, convention: str, *shape: float, binary: bool = False) -> int:
    return gpus_needed(_states(convention, *shape), load_device(device).memory_bytes(binary))


def _room(*shape: float) -> float:
    """What is left on each of the GPUs under ZeRO-3, in sequences."""
    shard = find_convention("zero").bytes_per_parameter * ceil(_parameters(*shape) / GPUS)
    return (load_device("h100_sxm_80").memory_bytes() - shard) / _sequence_bytes(*shape)


def _rounded_down(device: str, *shape: float) -> int:
    return _states("zero", *shape) // load_device(device).memory_bytes()


def _down_or_binary(device: str, *shape: float) -> float:
    """The number that both slips give, if it is the same."""
    down = _rounded_down(device, *shape)
    return down if down == _needed(device, "zero", *shape, binary=True) else nan


def _gpus(name: str, device: str) -> Question:
    return Question(
        name=name,
        level="gpus",
        unit="GPUs",
        answer=lambda *shape: _needed(device, "zero", *shape),
        typical=(
            (lambda *shape: _needed(device, "workshop", *shape), "that counts 14 bytes: the gradients are forgotten"),
            (
                lambda *shape: _needed(device, "megatron", *shape),
                "that counts fp32 gradients; in `states_gb` they are bf16",
            ),
            (
                partial(_down_or_binary, device),
                "rounded down (the rest needs a GPU too), or with GiB (a GPU's printed GB is 10^9 bytes)",
            ),
            (lambda *shape: _needed(device, "zero", *shape, binary=True), "with GiB; a GPU's printed GB is 10^9 bytes"),
            (partial(_rounded_down, device), "rounded down: the rest of the states needs a GPU too"),
        ),
    )


NEEDS = NumberExercise(
    key="01.4",
    title="assess memory needs",
    given=given,
    world_size=lambda *shape: 0,
    levels={"count": 1, "states": 3, "gpus": 2, "batch": 2},
    questions=(
        Question(
            name="parameters",
            level="count",
            unit="parameters",
            tolerance=1e-12,  # the head's bias is less than a millionth
            answer=_parameters,
            typical=(
                (lambda *s: _parameters(*s) - 2 * s[1], "the last norm, 2 H, is missing"),
                (lambda *s: _parameters(*s) - s[3] * s[1] - s[3], "the head, V (H + 1), is missing"),
                (lambda *s: _parameters(*s) - s[4] * s[1], "the positions, S H, are missing"),
                (lambda *s: _parameters(*s) - s[3], "the head has a bias: V (H + 1)"),
                (lambda *s: _parameters(*s) - 10 * s[0] * s[1], "norms and biases, 10 H in each layer, are missing"),
            ),
        ),
        Question(
            name="workshop_gb",
            level="states",
            unit="GB",
            tolerance=0.001,
            answer=lambda *s: _states("workshop", *s) / GB,
            typical=(
                (lambda *s: _states("workshop", *s) / GiB, "those are GiB; GB is asked, 10^9 bytes"),
                (lambda *s: _states("workshop", *s), "those are bytes"),
            ),
        ),
        Question(
            name="states_gb",
            level="states",
            unit="GB",
            tolerance=0.001,
            answer=lambda *s: _states("zero", *s) / GB,
            typical=(
                (lambda *s: _states("workshop", *s) / GB, "that is the workshop's 14; the gradients have 2 bytes"),
                (lambda *s: _states("zero", *s) / GiB, "those are GiB; GB is asked, 10^9 bytes"),
                (lambda *s: _states("megatron", *s) / GB, "that counts gradients in fp32; these are bf16"),
            ),
        ),
        Question(
            name="fp32_gradients_gb",
            level="states",
            unit="GB",
            tolerance=0.001,
            answer=lambda *s: _states("megatron", *s) / GB,
            typical=(
                (lambda *s: _states("zero", *s) / GB, "that is with bf16 gradients; in fp32 they have 4 bytes"),
                (
                    lambda *s: 20 * _parameters(*s) / GB,
                    "the gradients are 4 bytes instead of 2: that adds 2 bytes, not 4",
                ),
            ),
        ),
        _gpus("a100_40", "a100_sxm_40"),
        _gpus("h100_80", "h100_sxm_80"),
        Question(
            name="sequence_gb",
            level="batch",
            unit="GB",
            tolerance=0.001,
            answer=lambda *s: _sequence_bytes(*s) / GB,
            typical=(
                (lambda *s: _sequence_bytes(*s) / 2 / GB, "the formula counts numbers; each has 2 bytes in bf16"),
                (lambda *s: 2 * _sequence_bytes(*s) / GB, "4 bytes a number? In bf16 it has 2"),
                (lambda *s: _sequence_bytes(*s) / GiB, "those are GiB; GB is asked, 10^9 bytes"),
            ),
        ),
        Question(
            name="sequences_per_gpu",
            level="batch",
            unit="sequences",
            answer=lambda *s: int(_room(*s)),
            typical=(
                (_room, "only whole sequences count"),
                (lambda *s: ceil(_room(*s)), "rounded up: the last one does not fit"),
                (
                    lambda *s: load_device("h100_sxm_80").memory_bytes() // _sequence_bytes(*s),
                    "the states are in that memory too: each GPU's share of them",
                ),
            ),
        ),
    ),
    praise={
        "states": "right. Gradients are an eighth of what the states take, and easily forgotten",
        "batch": "right. A GPU's share of the states leaves room, and every sequence takes gigabytes of it",
    },
    hints=(
        "Type the formula as it stands: L*(12*H**2 + 10*H) + H*(V + S) + 2*H + V*(H + 1).",
        "14 bytes: weights 2, fp32 copy 4, two moments 4 each. Then gradients, of 2 bytes or of 4. 1 GB is 10**9.",
        "GPUs: bytes / memory, rounded up: math.ceil. A GPU of 80 GB has 80 * 10**9 bytes here.",
        "The activations' formula counts numbers, with B = 1. On 32 GPUs under ZeRO-3 each holds a 32nd of the "
        "states; what is left of 80 GB, divided by the bytes of a sequence, rounded down.",
    ),
)
