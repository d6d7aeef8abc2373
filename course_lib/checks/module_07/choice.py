"""07.5: which axis goes inside an NVLink domain, on the wires of a real cluster, and how wide it has to be."""

from __future__ import annotations

import random
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise
from course_lib.checks.kit.spec import BF16
from course_lib.checks.module_07.llama import Bytes, bytes_of, layer_numbers, numbers_of
from course_lib.config import load_model
from course_lib.hardware import leaving_of_rings, load_cluster, wires
from course_lib.units import GB

_TALKS, _SHARES = 10, 3  # gathers and scatters of a layer in a step: along tp of activations, along dp of weights


class Cluster(NamedTuple):
    """Nodes of g GPUs, their wires in bytes/s; a sequence, a layer, what a token leaves; a GPU's GB, and those free."""

    nodes: int
    g: int
    fast: float  # of a ring inside a node
    cards: int
    card: float
    S: int
    H: int
    layer: int
    inside: int
    between: int
    everywhere: int
    parameters: int
    budget: int
    free: int
    batch: int

    @property
    def along_tp(self) -> float:
        """Bytes that a GPU sends along tp for a layer, where tp fills a node."""
        return _TALKS * (self.g - 1) / self.g * BF16 * self.S * self.H

    @property
    def along_dp(self) -> float:
        """Bytes that it sends along dp."""
        return _SHARES * (self.nodes - 1) / self.nodes * BF16 * self.layer / self.g

    def slow(self, ranks: int, stride: int) -> float:
        """Bytes/s of one of the rings whose ranks are so far apart: those that leave a node share its cards."""
        return self.cards * self.card / float(leaving_of_rings(ranks, stride, self.g))

    @property
    def along_dp_slow(self) -> float:
        """Where tp has the neighbours, every GPU of a node is in a ring of its own along dp."""
        return self.slow(self.nodes, self.g)

    @property
    def along_tp_slow(self) -> float:
        """Where dp has the neighbours, and a ring along tp goes through all nodes."""
        return self.slow(self.g, self.nodes)

    @property
    def states(self) -> float:
        """Bytes that last, which both axes share."""
        return 16 * self.parameters / (self.nodes * self.g)

    def fits(self, tp: int, sequence_parallel: bool = True, states: bool = True, free: bool = True) -> bool:
        """Whether a sequence's activations have room on each of so many ranks."""
        kept = self.S * Bytes(self.inside, self.between, self.everywhere).on_rank(tp, sequence_parallel)
        return kept + self.states * states <= (self.budget - self.free * free) * GB

    def smallest(self, **how: bool) -> int:
        """The least power of two that fits, at most a node; 0 if none does."""
        return next((tp for tp in (1, 2, 4, 8) if tp <= self.g and self.fits(tp, **how)), 0)

    @property
    def tp(self) -> int:
        """With sequence parallelism."""
        return self.smallest()

    @property
    def sequences(self) -> float:
        """That all GPUs read at a time."""
        return self.nodes * self.g / self.tp


_CLUSTERS = (  # name, nodes, tokens, GB that stay free, batch: each rule of the text changes the tp that fits
    ("dgx_h200", 4, 7680, 25, 128),
    ("dgx_h200", 3, 6400, 30, 96),
    ("dgx_h200", 2, 2560, 30, 128),
    ("dgx_b200", 3, 9728, 30, 96),
    ("dgx_h200", 6, 8192, 30, 96),
)


def cluster(seed: int) -> Cluster:
    """The 70B on four nodes of 8 H200s, unless an instructor asks for other numbers."""
    name, nodes, tokens, free, batch = _CLUSTERS[0] if seed == 0 else random.Random(seed).choice(_CLUSTERS[1:])
    model, real = load_model("llama3_1_70b"), load_cluster(name)
    matrices, norms, _ = numbers_of(model)
    one = wires(real)
    speeds = one.inside_bytes_per_s, one.cards, one.card.bandwidth_bytes_per_s
    sizes = tokens, model.hidden_size, layer_numbers(model)
    budget = round(real.device.memory_bytes() / GB)
    return Cluster(nodes, one.domain, *speeds, *sizes, *bytes_of(model), matrices + norms, budget, free, batch)


def _ms(nbytes: float, per_second: float) -> float:
    return 1e3 * nbytes / per_second


_RING = "a ring sends (n-1)/n of the whole in each gather or scatter"
_BOTH = "an all-reduce is a gather and a scatter. Each of these messages is one of the two, so it sends half as much"
_IN_SECONDS = "in seconds? Milliseconds are asked"
_TOO_LARGE = "it fits, but so does a smaller one, which reads more sequences at a time"

_CHOICE = NumberExercise(
    key="07.5",
    title="which axis on the fast wires?",
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
                _BOTH: lambda g: 2 * g.along_tp,
                "a tenth of it. There are ten gathers and scatters, each of which has all tokens for its whole": (
                    lambda g: g.along_tp / _TALKS
                ),
            }, collective=False),
            Ask("dp_bytes", "bytes", lambda g: g.along_dp, {
                "tp has cut the layer before, so only a g-th of it is gathered": lambda g: g.along_dp * g.g,
                "gathers alone? The gradients' reduce-scatter comes on top": lambda g: g.along_dp * 2 / 3,
                "an all-reduce of gradients? That is DDP's. FSDP gathers weights twice and scatters gradients": (
                    lambda g: g.along_dp * 2 / 3
                ),
                "gradients are not all-reduced here. Their reduce-scatter is half of that": (
                    lambda g: g.along_dp * 4 / 3
                ),
                _BOTH: lambda g: 2 * g.along_dp,
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
            Ask("tp_inside_ms", "ms", lambda g: _ms(g.along_tp, g.fast), {
                "on the cards? These ranks are in one node": lambda g: _ms(g.along_tp, g.along_tp_slow),
                "through one card? These ranks are in one node": lambda g: _ms(g.along_tp, g.card),
                "FSDP's messages on top? Only tp's are asked": (
                    lambda g: _ms(g.along_tp, g.fast) + _ms(g.along_dp, g.along_dp_slow)
                ),
                _IN_SECONDS: lambda g: _ms(g.along_tp, g.fast) / 1e3,
            }, follows=lambda own, g: _ms(own["tp_bytes"], g.fast), collective=False),
            Ask("dp_between_ms", "ms", lambda g: _ms(g.along_dp, g.along_dp_slow), {
                "all cards for one ring? Each GPU of a node is in a ring of its own along dp, and g rings share the "
                "cards": lambda g: _ms(g.along_dp, g.cards * g.card),
                "on the wires inside? These ranks are in different nodes": lambda g: _ms(g.along_dp, g.fast),
                _IN_SECONDS: lambda g: _ms(g.along_dp, g.along_dp_slow) / 1e3,
            }, follows=lambda own, g: _ms(own["dp_bytes"], g.along_dp_slow), collective=False),
            Ask("tp_between_ms", "ms", lambda g: _ms(g.along_tp, g.along_tp_slow), {
                "that is a textbook's ring, through one card. As many rings as there are nodes leave each of them, and "
                "share all its cards": lambda g: _ms(g.along_tp, g.card),
                "all cards for one ring? A node has as many of these rings as there are nodes": (
                    lambda g: _ms(g.along_tp, g.cards * g.card)
                ),
                "that is as if g / nodes rings left a node. So many ranks of each ring are in it, and as many rings as "
                "there are nodes": (
                    lambda g: _ms(g.along_tp, g.cards * g.card * g.nodes / g.g)
                ),
                "inside a node? With the axes swapped a ring along tp goes through all of them": (
                    lambda g: _ms(g.along_tp, g.fast)
                ),
                _IN_SECONDS: lambda g: _ms(g.along_tp, g.along_tp_slow) / 1e3,
            }, follows=lambda own, g: _ms(own["tp_bytes"], g.along_tp_slow), collective=False),
        ), "right: tp's messages are exposed, so they get the wires inside, even where dp's take longer"),
        "degrees": Group(2, (
            Ask("tp", "ranks", lambda g: g.tp, {
                "the states are there too, which last": lambda g: g.smallest(states=False),
                "some GB must stay free": lambda g: g.smallest(free=False),
                "that is without sequence parallelism, which it has here": (
                    lambda g: g.smallest(sequence_parallel=False)
                ),
                _TOO_LARGE: lambda g: 2 * g.tp,
                "that does not fit: look at activations, states and what stays free together": (
                    lambda g: g.tp / 2, lambda g: g.tp / 4
                ),
            }, collective=False, choice=True),
            Ask("sequences", "sequences", lambda g: g.sequences, {
                "all GPUs? Those along tp read the same sequence": lambda g: g.nodes * g.g,
                "one for each node? Several groups of tp ranks have room in a node": lambda g: g.nodes,
                "that is tp; every group of tp ranks reads a sequence": lambda g: g.tp,
            }, follows=lambda own, g: g.nodes * g.g / own["tp"], collective=False),
            Ask("rounds", "rounds", lambda g: g.batch / g.sequences, {
                "as if every GPU read a sequence of its own": lambda g: g.batch / (g.nodes * g.g),
                "as if every node read one sequence": lambda g: g.batch / g.nodes,
                "that is the batch itself; several sequences are read at a time": lambda g: g.batch,
            }, follows=lambda own, g: g.batch / own["sequences"], collective=False),
        ), "right: as small as fits. A wider tp reads fewer sequences at a time, and sends more for each"),
    },
    hints=(
        "Along tp attention and feed-forward each gather their input and scatter their sum, in forward and in "
        "backward, and backward gathers the input once more: ten times (g-1)/g of S * H numbers.",
        "Along dp there are two gathers and a reduce-scatter of what tp leaves a rank, each (n-1)/n of it.",
        "Bytes by bytes per second are seconds. If tp fills a node, each of its g GPUs is in a ring of its own along "
        "dp, and these g rings share the cards. Swapped, neighbours are along dp, so a node has as many rings along tp "
        "as there are nodes.",
        "For tp = 1, 2, 4, 8: S * ((inside + between) / tp + everywhere) bytes of activations, and 16 bytes for each "
        "parameter, shared among all GPUs. The first that leaves enough free is it.",
        "As many sequences are read at a time as there are groups of tp ranks. Divide the batch by that.",
    ),
)  # fmt: skip
