"""01.4: assess memory needs, after a public workshop."""

from __future__ import annotations

import random
from functools import partial
from math import ceil
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise
from course_lib.config import ModelConfig
from course_lib.costs.model.conventions import find_convention
from course_lib.costs.model.states import gpus_needed
from course_lib.costs.published.activations import workshop_activations
from course_lib.costs.published.parameters import workshop_parameters
from course_lib.hardware import load_device
from course_lib.units import GB, GiB

GPUS = 32  # among which the batch is asked
A100, H100 = (load_device(name) for name in ("a100_sxm_40", "h100_sxm_80"))


class Dimensions(NamedTuple):
    """Layers, width, heads, vocabulary and positions."""

    L: int
    H: int
    A: int
    V: int
    S: int

    @property
    def model(self) -> ModelConfig:
        """Of GPT's shape."""
        return ModelConfig(
            name="given",
            hidden_size=self.H,
            n_layers=self.L,
            n_heads=self.A,
            n_kv_heads=self.A,
            ffn_size=4 * self.H,
            vocab_size=self.V,
            max_sequence=self.S,
            tied=False,
        )

    @property
    def P(self) -> int:
        """Parameters, as the workshop counts them."""
        return workshop_parameters(self.model)

    @property
    def sequence(self) -> int:
        """Bytes of one sequence's activations."""
        return 2 * workshop_activations(self.model, batch=1, sequence=self.S)

    @property
    def room(self) -> float:
        """What is left on each of the GPUs under ZeRO-3, in sequences."""
        return (H100.memory_bytes() - find_convention("zero").bytes_per_parameter * ceil(self.P / GPUS)) / self.sequence

    def states(self, convention: str) -> int:
        """Bytes of all states."""
        return find_convention(convention).bytes_per_parameter * self.P

    def gpus(self, memory: int, convention: str = "zero") -> int:
        """How many are needed for the states."""
        return gpus_needed(self.states(convention), memory)


SHAPES = tuple(  # in which no wrong way to count GPUs or sequences gives the right number
    Dimensions(*shape)
    for shape in (
        (64, 9216, 72, 50280, 1024),
        (56, 8192, 64, 32100, 1024),
        (80, 8192, 64, 50280, 1024),
        (64, 9216, 72, 32100, 1024),
    )
)


def given(seed: int) -> Dimensions:
    """The workshop's own model unless an instructor asks for another."""
    return SHAPES[0] if seed == 0 else random.Random(seed).choice(SHAPES)


IN_GIB = "those are GiB; GB is asked, 10^9 bytes"
FORGOTTEN = "that counts 14 bytes: the gradients are forgotten"
IN_FP32 = "that counts fp32 gradients; in `states_gb` they are bf16"
BINARY = "with GiB; a GPU's printed GB is 10^9 bytes"
DOWN = "rounded down: the rest of the states needs a GPU too"

_gb = partial(Ask, unit="GB", tolerance=0.001)

_NEEDS = NumberExercise(
    key="01.4",
    title="assess memory needs",
    given=given,
    levels={
        "count": Group(1, (
            Ask("parameters", "parameters", lambda g: g.P, {
                "the last norm, 2 H, is missing": lambda g: g.P - 2 * g.H,
                "the head, V (H + 1), is missing": lambda g: g.P - g.V * (g.H + 1),
                "the positions, S H, are missing": lambda g: g.P - g.S * g.H,
                "the head has a bias: V (H + 1)": lambda g: g.P - g.V,
                "norms and biases, 10 H in each layer, are missing": lambda g: g.P - 10 * g.L * g.H,
            }, tolerance=1e-12),  # the head's bias is less than a millionth
        )),
        "states": Group(3, (
            _gb("workshop_gb", answer=lambda g: g.states("workshop") / GB, slips={
                IN_GIB: lambda g: g.states("workshop") / GiB,
                "those are bytes": lambda g: g.states("workshop"),
            }),
            _gb("states_gb", answer=lambda g: g.states("zero") / GB, slips={
                "that is the workshop's 14; the gradients have 2 bytes": lambda g: g.states("workshop") / GB,
                IN_GIB: lambda g: g.states("zero") / GiB,
                "that counts gradients in fp32; these are bf16": lambda g: g.states("megatron") / GB,
            }),
            _gb("fp32_gradients_gb", answer=lambda g: g.states("megatron") / GB, slips={
                "that is with bf16 gradients; in fp32 they have 4 bytes": lambda g: g.states("zero") / GB,
                "the gradients are 4 bytes instead of 2: that adds 2 bytes, not 4": lambda g: 20 * g.P / GB,
            }),
        ), "right. Gradients are an eighth of what the states take, and easily forgotten"),
        "gpus": Group(2, (
            Ask("a100_40", "GPUs", lambda g: g.gpus(A100.memory_bytes()), {
                FORGOTTEN: lambda g: g.gpus(A100.memory_bytes(), "workshop"),
                IN_FP32: lambda g: g.gpus(A100.memory_bytes(), "megatron"),
                BINARY: lambda g: g.gpus(A100.memory_bytes(binary=True)),
                DOWN: lambda g: g.states("zero") // A100.memory_bytes(),
            }),
            Ask("h100_80", "GPUs", lambda g: g.gpus(H100.memory_bytes()), {
                FORGOTTEN: lambda g: g.gpus(H100.memory_bytes(), "workshop"),
                IN_FP32: lambda g: g.gpus(H100.memory_bytes(), "megatron"),
                BINARY: lambda g: g.gpus(H100.memory_bytes(binary=True)),
                DOWN: lambda g: g.states("zero") // H100.memory_bytes(),
            }),
        )),
        "batch": Group(2, (
            _gb("sequence_gb", answer=lambda g: g.sequence / GB, slips={
                "the formula counts numbers; each has 2 bytes in bf16": lambda g: g.sequence / 2 / GB,
                "4 bytes a number? In bf16 it has 2": lambda g: 2 * g.sequence / GB,
                IN_GIB: lambda g: g.sequence / GiB,
            }),
            Ask("sequences_per_gpu", "sequences", lambda g: int(g.room), {
                "only whole sequences count": lambda g: g.room,
                "rounded up: the last one does not fit": lambda g: ceil(g.room),
                "the states are in that memory too: each GPU's share of them":
                    lambda g: H100.memory_bytes() // g.sequence,
            }),
        ), "right. A GPU's share of the states leaves room, and every sequence takes gigabytes of it"),
    },
    hints=(
        "Type the formula as it stands: L*(12*H**2 + 10*H) + H*(V + S) + 2*H + V*(H + 1).",
        "14 bytes: weights 2, fp32 copy 4, two moments 4 each. Then gradients, of 2 bytes or of 4. 1 GB is 10**9.",
        "GPUs: bytes / memory, rounded up: math.ceil. A GPU of 80 GB has 80 * 10**9 bytes here.",
        "The activations' formula counts numbers, with B = 1. On 32 GPUs under ZeRO-3 each holds a 32nd of the "
        "states; what is left of 80 GB, divided by the bytes of a sequence, rounded down.",
    ),
)  # fmt: skip
