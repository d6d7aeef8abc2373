"""07.5: which axis goes inside a node, and how wide it has to be."""

from __future__ import annotations

import random
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise
from course_lib.checks.kit.spec import BF16
from course_lib.checks.module_07.llama import Bytes, bytes_of, layer_numbers, numbers_of, other_than
from course_lib.config import load_model
from course_lib.hardware import INFINIBAND, NVLINK
from course_lib.units import GB

_TALKS, _SHARES = 10, 3  # gathers and scatters of a layer in a step: along tp of activations, along dp of weights
_FREE = 2  # GB of a GPU that nobody takes


class Cluster(NamedTuple):
    """Nodes of g GPUs, bytes/s inside and between; a sequence, a layer, what a token leaves; and a GPU's GB."""

    nodes: int
    g: int
    fast: float
    slow: float
    S: int
    H: int
    layer: int
    inside: int
    between: int
    everywhere: int
    parameters: int
    budget: int
    batch: int

    @property
    def along_tp(self) -> float:
        """Bytes that a GPU sends along tp for a layer, where tp fills a node."""
        return _TALKS * (self.g - 1) / self.g * BF16 * self.S * self.H

    @property
    def along_dp(self) -> float:
        """Bytes that it sends along dp."""
        return _SHARES * (self.nodes - 1) / self.nodes * BF16 * self.layer / self.g

    @property
    def states(self) -> float:
        """Bytes that last, which both axes share."""
        return 16 * self.parameters / (self.nodes * self.g)

    def fits(self, tp: int, sequence_parallel: bool = True, states: bool = True) -> bool:
        """Whether a sequence's activations have room on each of so many ranks."""
        kept = self.S * Bytes(self.inside, self.between, self.everywhere).on_rank(tp, sequence_parallel)
        return kept + self.states * states <= (self.budget - _FREE) * GB

    def smallest(self, **how: bool) -> int:
        """The least power of two that fits, at most a node; 0 if none does."""
        return next((tp for tp in (1, 2, 4, 8) if tp <= self.g and self.fits(tp, **how)), 0)

    @property
    def tp(self) -> int:
        """With sequence parallelism."""
        return self.smallest()

    @property
    def texts(self) -> float:
        """That all GPUs read at a time."""
        return self.nodes * self.g / self.tp


def cluster(seed: int) -> Cluster:
    """The 70B on four nodes of 8, unless an instructor asks for other numbers."""
    draw = random.Random(seed)
    nodes, tokens, budget = (
        (4, 8192, 141) if seed == 0 else draw.choice(((8, 8192, 80), (4, 16384, 141), (8, 12288, 141)))
    )
    model = load_model("llama3_1_70b")
    matrices, norms, _ = numbers_of(model)
    wires = NVLINK.bandwidth_bytes_per_s, INFINIBAND.bandwidth_bytes_per_s
    sizes = tokens, model.hidden_size, layer_numbers(model)
    return Cluster(nodes, 8, *wires, *sizes, *bytes_of(model), matrices + norms, budget, 128)


def _ms(tp_wire: float, dp_wire: float, g: Cluster) -> float:
    return 1e3 * (g.along_tp / tp_wire + g.along_dp / dp_wire)


_RING = "a ring sends (n-1)/n of the whole in each gather or scatter"
_IN_SECONDS = "in seconds? Milliseconds are asked"
_TOO_LARGE = "it fits, but so does a smaller one, which reads more sequences at a time"

_CHOICE = NumberExercise(
    key="07.5",
    title="which axis inside a node?",
    given=cluster,
    levels={
        "wires": Group(2, (
            Ask("tp_bytes", "bytes", lambda g: g.along_tp, {
                "half of it. Has every number two bytes, every layer two blocks, and is backward there?": (
                    lambda g: g.along_tp / 2
                ),
                f"{_RING}, with n = g ranks along tp": lambda g: _TALKS * BF16 * g.S * g.H,
                "with n = nodes? There are g ranks along tp": (
                    lambda g: _TALKS * (g.nodes - 1) / g.nodes * BF16 * g.S * g.H
                ),
                "backward gathers the input once more: ten messages, and not eight": lambda g: g.along_tp * 8 / _TALKS,
                "a tenth of it. There are ten gathers and scatters, each of which has all tokens for its whole": (
                    lambda g: g.along_tp / _TALKS
                ),
            }, collective=False),
            Ask("dp_bytes", "bytes", lambda g: g.along_dp, {
                "tp has cut the layer before, so only a g-th of it is gathered": lambda g: g.along_dp * g.g,
                "gathers alone? The gradients' reduce-scatter comes on top": lambda g: g.along_dp * 2 / 3,
                "one gather? Forward has one and backward another": lambda g: g.along_dp / 3,
                f"{_RING}, with n = nodes ranks along dp": lambda g: _SHARES * BF16 * g.layer / g.g,
                "with n = g? There are as many ranks along dp as nodes": (
                    lambda g: _SHARES * (g.g - 1) / g.g * BF16 * g.layer / g.g
                ),
                "with n = all GPUs? There are as many ranks along dp as nodes": (
                    lambda g: _SHARES * (g.nodes * g.g - 1) / (g.nodes * g.g) * BF16 * g.layer / g.g
                ),
                "numbers? In bf16 each has two bytes": lambda g: g.along_dp / BF16,
            }, collective=False),
        ), "right: activations are what tp sends, and weights what FSDP sends"),
        "axes": Group(1, (
            Ask("tp_inside_ms", "ms", lambda g: _ms(g.fast, g.slow, g), {
                "that is with the wires swapped: here tp has the fast one": lambda g: _ms(g.slow, g.fast, g),
                "tp's alone; what FSDP sends between the nodes takes its time too": (
                    lambda g: 1e3 * g.along_tp / g.fast
                ),
                "that is FSDP's alone": lambda g: 1e3 * g.along_dp / g.slow,
                "both on the fast wire? dp goes between the nodes": lambda g: _ms(g.fast, g.fast, g),
                _IN_SECONDS: lambda g: _ms(g.fast, g.slow, g) / 1e3,
            }, follows=lambda own, g: 1e3 * (own["tp_bytes"] / g.fast + own["dp_bytes"] / g.slow), collective=False),
            Ask("dp_inside_ms", "ms", lambda g: _ms(g.slow, g.fast, g), {
                "that is with tp on the fast wire; here FSDP has it": lambda g: _ms(g.fast, g.slow, g),
                "both on the slow wire? dp stays inside the node here": lambda g: _ms(g.slow, g.slow, g),
                _IN_SECONDS: lambda g: _ms(g.slow, g.fast, g) / 1e3,
            }, follows=lambda own, g: 1e3 * (own["tp_bytes"] / g.slow + own["dp_bytes"] / g.fast), collective=False),
        ), "right: the axis that sends more gets the fast wire"),
        "degrees": Group(2, (
            Ask("tp", "ranks", lambda g: g.tp, {
                "the states are there too, and 2 GB free": lambda g: other_than(g.smallest(states=False), g.tp),
                "that is without sequence parallelism, which it has here": (
                    lambda g: other_than(g.smallest(sequence_parallel=False), g.tp)
                ),
                _TOO_LARGE: lambda g: other_than(8, g.tp),
                "that does not fit: look at activations, states and 2 GB together": (
                    lambda g: g.tp / 2, lambda g: g.tp / 4
                ),
            }, collective=False),
            Ask("texts", "texts", lambda g: g.texts, {
                "all GPUs? Those along tp read the same sequence": lambda g: g.nodes * g.g,
                "one for each node? Several groups of tp ranks have room in a node": (
                    lambda g: other_than(g.nodes, g.texts)
                ),
                "that is tp; every group of tp ranks reads a sequence": lambda g: other_than(g.tp, g.texts),
            }, follows=lambda own, g: g.nodes * g.g / own["tp"], collective=False),
            Ask("rounds", "rounds", lambda g: g.batch / g.texts, {
                "as if every GPU read a sequence of its own": lambda g: g.batch / (g.nodes * g.g),
                "as if every node read one sequence": lambda g: other_than(g.batch / g.nodes, g.batch / g.texts),
                "that is the batch itself; several sequences are read at a time": lambda g: g.batch,
            }, follows=lambda own, g: g.batch / own["texts"], collective=False),
        ), "right: as small as fits. A wider tp reads fewer sequences at a time, and sends more for each"),
    },
    hints=(
        "Along tp attention and feed-forward each gather their input and scatter their sum, in forward and in "
        "backward, and backward gathers the input once more: ten times (g-1)/g of S * H numbers.",
        "Along dp there are two gathers and a reduce-scatter of what tp leaves a rank, each (n-1)/n of it.",
        "Bytes by bytes per second are seconds. Add up both axes, each on its wire.",
        "For tp = 1, 2, 4, 8: S * ((inside + between) / tp + everywhere) bytes of activations, and 16 bytes for each "
        "parameter, shared among all GPUs. The first that leaves 2 GB free is it.",
        "As many sequences are read at a time as there are groups of tp ranks. Divide the batch by that.",
    ),
)  # fmt: skip
