"""08.2: what a GPU sends along each of three axes in one step, and what of it leaves the node."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise, Slips
from course_lib.checks.kit.spec import BF16
from course_lib.config import load_model
from course_lib.costs.model.parameters import layer_weights
from course_lib.units import GB, GiB

_SUMS = 4  # all-reduces of a layer for one micro-batch: after attention and feed-forward, forward and backward


class Policy(NamedTuple):
    """Degrees, micro-batches of a pipeline, tokens and width of one of them, layers, and a layer's numbers."""

    pp: int
    dp: int
    tp: int
    m: int
    S: int
    H: int
    L: int
    layer: int

    @property
    def activation(self) -> int:
        """Bytes of one micro-batch between two layers."""
        return BF16 * self.S * self.H

    @property
    def layers(self) -> float:
        """Of a stage."""
        return self.L / self.pp

    @property
    def along_tp(self) -> float:
        """Bytes that a GPU sends in a step."""
        return self.m * self.layers * _SUMS * ring_share(self.tp) * self.activation

    @property
    def along_pp(self) -> float:
        """The same, of a stage in the middle."""
        return 2 * self.m * self.activation

    @property
    def held(self) -> float:
        """Bytes of a GPU's gradients."""
        return BF16 * self.layer * self.layers / self.tp

    @property
    def along_dp(self) -> float:
        """Bytes that it sends to average them."""
        return ring_share(self.dp) * self.held


def ring_share(n: int) -> float:
    """What a rank sends in an all-reduce in a ring of n, over the whole."""
    return 2 * (n - 1) / n


def policy(seed: int) -> Policy:
    """The 70B on 128 GPUs, unless an instructor asks for other numbers."""
    draw = random.Random(seed)
    choices = ((4, 4, 8, 16), (5, 4, 8, 32), (10, 4, 8, 24), (5, 16, 8, 20))
    degrees = choices[0] if seed == 0 else draw.choice(choices[1:])
    model = load_model("llama3_1_70b")
    layer = sum(one.parameters for one in layer_weights(model) if one.split is not None)
    tokens = 8192 if seed == 0 else draw.choice((4096, 6144))
    return Policy(*degrees, tokens, model.hidden_size, model.n_layers, layer)


_GIB = "those are GiB. Here GB are asked, of 10^9 bytes"


def _in_other_units(nbytes: Callable[[Policy], float]) -> Slips:
    """What is said of an amount that is not in GB of bf16 numbers."""
    return {
        _GIB: lambda g: nbytes(g) / GiB,
        "those are bytes. GB are asked, of 10^9 of them": nbytes,
        "four bytes each? bf16 has two": lambda g: nbytes(g) * 2 / GB,
        "those are numbers. In bf16 each has two bytes": lambda g: nbytes(g) / BF16 / GB,
    }


_TRAFFIC = NumberExercise(
    key="08.2",
    title="what each axis sends",
    given=policy,
    levels={
        "axes": Group(4, (
            Ask("activation", "bytes", lambda g: g.activation, {
                "those are numbers. In bf16 each has two bytes": lambda g: g.S * g.H,
                "four bytes each? bf16 has two": lambda g: 4 * g.S * g.H,
                "that is a tp-th of it. Without sequence parallelism each rank along tp has the whole": (
                    lambda g: g.activation / g.tp
                ),
                "that is of all micro-batches. One is asked": lambda g: g.m * g.activation,
            }, collective=False),
            Ask("tp_gb", "GB", lambda g: g.along_tp / GB, {
                "that is one micro-batch. All m of them pass in a step": lambda g: g.along_tp / g.m / GB,
                "that is one layer. A stage has L / pp of them": lambda g: g.along_tp / g.layers / GB,
                "those are all L layers. A stage has L / pp of them": lambda g: g.along_tp * g.pp / GB,
                "that is half of it. Backward adds up twice in each layer, too, and each sum goes around its ring "
                "twice": lambda g: g.along_tp / 2 / GB,
                "one sum in each layer? There are two blocks, and both go forward and backward": (
                    lambda g: g.along_tp / _SUMS / GB
                ),
                "three sums in each layer? Attention and feed-forward have one each in forward, and one each in "
                "backward": lambda g: g.along_tp * 3 / _SUMS / GB,
                "an all-reduce in a ring sends 2 (tp - 1) / tp of the whole, for it goes around twice": (
                    lambda g: g.along_tp * g.tp / (g.tp - 1) / GB,
                    lambda g: g.along_tp / ring_share(g.tp) / GB,
                ),
                **_in_other_units(lambda g: g.along_tp),
            }, collective=False),
            Ask("pp_gb", "GB", lambda g: g.along_pp / GB, {
                "that is one way. A stage in the middle sends activations on and gradients back": (
                    lambda g: g.along_pp / 2 / GB
                ),
                "that is one micro-batch. All m of them pass in a step": lambda g: g.along_pp / g.m / GB,
                "a message for each layer? Only what leaves a stage is sent along pp": (
                    lambda g: g.along_pp * g.layers / GB
                ),
                "a tp-th of it? Without sequence parallelism each rank along tp sends the whole activation to its own "
                "partner": lambda g: g.along_pp / g.tp / GB,
                "that is the whole pipeline. One GPU sends over its own two borders": (
                    lambda g: g.along_pp * (g.pp - 1) / GB
                ),
                **_in_other_units(lambda g: g.along_pp),
            }, follows=lambda own, g: 2 * g.m * own["activation"] / GB, collective=False),
            Ask("dp_gb", "GB", lambda g: g.along_dp / GB, {
                "tp has cut every matrix, so a GPU has only a tp-th of these gradients": (
                    lambda g: g.along_dp * g.tp / GB
                ),
                "those are all L layers. A stage has L / pp of them": lambda g: g.along_dp * g.pp / GB,
                "that is one layer. A stage has L / pp of them": lambda g: g.along_dp / g.layers / GB,
                "for each micro-batch? Their gradients are added up first, and averaged once a step": (
                    lambda g: g.along_dp * g.m / GB
                ),
                "an all-reduce in a ring sends 2 (dp - 1) / dp of the whole, for it goes around twice": (
                    lambda g: g.held / GB, lambda g: 2 * g.held / GB, lambda g: g.along_dp / 2 / GB
                ),
                "that ring has tp ranks. Gradients go around dp": lambda g: ring_share(g.tp) * g.held / GB,
                **_in_other_units(lambda g: g.along_dp),
            }, collective=False),
        ), "right: tp sends in every layer and for every micro-batch, pp only where a stage ends, dp once a step"),
        "network": Group(2, (
            Ask("network_gb", "GB", lambda g: (g.along_pp + g.along_dp) / GB, {
                "all three axes? A node has tp GPUs, so what goes along tp stays inside": (
                    lambda g: (g.along_tp + g.along_pp + g.along_dp) / GB
                ),
                "that is dp alone. The next stage is in another node, too": lambda g: g.along_dp / GB,
                "that is pp alone. The replicas are in other nodes, too": lambda g: g.along_pp / GB,
                "that is the whole node. One GPU is asked": lambda g: g.tp * (g.along_pp + g.along_dp) / GB,
            }, follows=lambda own, g: own["pp_gb"] + own["dp_gb"], collective=False),
            Ask("twice_gb", "GB", lambda g: (2 * g.along_pp + g.along_dp) / GB, {
                "twice as much of everything? Gradients are still averaged once a step": (
                    lambda g: 2 * (g.along_pp + g.along_dp) / GB
                ),
                "as much as before? Twice as many activations and gradients cross the border of a stage": (
                    lambda g: (g.along_pp + g.along_dp) / GB
                ),
                "it is the other way round: along pp more is sent, and along dp as much as before": (
                    lambda g: (g.along_pp + 2 * g.along_dp) / GB
                ),
                "all three axes? What goes along tp stays inside a node": (
                    lambda g: (2 * g.along_tp + 2 * g.along_pp + g.along_dp) / GB
                ),
            }, follows=lambda own, g: 2 * own["pp_gb"] + own["dp_gb"], collective=False),
        ), "right: the more micro-batches a step has, the less its gradients weigh"),
    },
    hints=(
        "An activation is S tokens of H numbers, two bytes each. All messages along tp and pp are made of it.",
        "Along tp: two sums in forward and two in backward, in each of the L / pp layers of a stage, for each of m "
        "micro-batches. A ring of n ranks sends 2 (n - 1) / n of the whole in each sum.",
        "Along pp: a stage in the middle sends m activations to the next stage, and m gradients to the one before.",
        "Along dp: a GPU has a tp-th of L / pp layers. Their gradients have two bytes each, and go around the ring of "
        "dp ranks once a step.",
    ),
)  # fmt: skip
