"""08.3: the seconds of a step by hand: multiply, wait along tp, the bubble, wait along dp."""

from __future__ import annotations

import random
from typing import NamedTuple

from course_lib.checks.kit.sheet import PERCENT, Ask, Group, NumberExercise
from course_lib.checks.kit.spec import BF16
from course_lib.checks.module_08.three_axes import ring_share
from course_lib.config import load_model
from course_lib.costs.model.parameters import model_parameters
from course_lib.hardware import load_cluster, wires

_SUMS, _OPERATIONS = 4, 6  # all-reduces of a layer for one micro-batch; operations for each parameter and token
_BACKWARD = 2 / 3  # of a micro-batch's time
_REACHED = 0.6  # of the data sheet
_CARDS = 2  # of a node


class StepAsked(NamedTuple):
    """Degrees, micro-batches, tokens of one, parameters, width, layers; a GPU's and the wires' rates, and the peak."""

    pp: int
    dp: int
    tp: int
    m: int
    tokens: int
    P: int
    H: int
    L: int
    reached: float
    fast: float  # of a ring inside a node of tp GPUs
    cards: int
    card: float
    peak: float

    @property
    def slow(self) -> float:
        """Bytes/s of one ring along dp: each GPU of a node is in one of its own, and these share the cards."""
        return self.cards * self.card / self.tp

    @property
    def flops(self) -> float:
        """Of a whole step on all GPUs."""
        return _OPERATIONS * self.P * self.dp * self.m * self.tokens

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.pp * self.dp * self.tp

    @property
    def multiply(self) -> float:
        """Seconds of products on each GPU."""
        return self.flops / (self.gpus * self.reached)

    @property
    def along_tp(self) -> float:
        """Seconds of sums, each in a ring inside its node."""
        each = ring_share(self.tp) * BF16 * self.tokens * self.H / self.fast
        return self.m * self.L / self.pp * _SUMS * each

    @property
    def busy(self) -> float:
        """Seconds in which a GPU is at its micro-batches."""
        return self.multiply + self.along_tp

    @property
    def bubble(self) -> float:
        """Seconds in which it waits for other stages."""
        return self.busy * (self.pp - 1) / self.m

    @property
    def along_dp(self) -> float:
        """Seconds to average the gradients between the nodes."""
        return ring_share(self.dp) * BF16 * self.P / (self.pp * self.tp) / self.slow

    @property
    def backward(self) -> float:
        """Seconds of the last micro-batch's backward, in which gradients may travel."""
        return _BACKWARD * self.busy / self.m

    @property
    def exposed(self) -> float:
        """Seconds along dp that nothing hides."""
        return max(0.0, self.along_dp - self.backward)

    @property
    def whole(self) -> float:
        """All of it."""
        return self.busy + self.bubble + self.exposed

    @property
    def fewer(self) -> StepAsked:
        """The same batch in half as many micro-batches of twice as many tokens."""
        return self._replace(m=self.m // 2, tokens=2 * self.tokens)

    @property
    def mfu(self) -> float:
        """Share of the peak for the model's own operations."""
        return self.flops / (self.gpus * self.peak * self.whole)


def _given(seed: int) -> StepAsked:
    """The 8B on 192 GPUs, unless an instructor asks for other numbers; something stays exposed in all of them."""
    draw = random.Random(seed)
    choices = ((4, 6, 8, 12), (4, 5, 8, 10), (4, 6, 8, 16), (8, 5, 4, 12))
    degrees = choices[0] if seed == 0 else draw.choice(choices[1:])
    model, peak = load_model("llama3_1_8b"), load_cluster("dgx_h100").device.dense_flops_per_s["bf16"]
    sizes = model_parameters(model), model.hidden_size, model.n_layers
    of = "kempner_h100" if seed == 0 else draw.choice(("kempner_h100", "kempner_a100"))
    tokens = 8192 if seed == 0 else draw.choice((4096, 8192))
    rates = wires(load_cluster("dgx_h100")).inside_bytes_per_s, _CARDS, load_cluster(of).card.bandwidth_bytes_per_s
    return StepAsked(*degrees, tokens, *sizes, _REACHED * peak, *rates, peak)


_MS = "in milliseconds? Seconds are asked"

_STEP = NumberExercise(
    key="08.3",
    title="a step by hand",
    given=_given,
    levels={
        "parts": Group(3, (
            Ask("multiply_s", "s", lambda g: g.multiply, {
                "two operations are forward alone. Backward takes four more": lambda g: g.multiply / 3,
                "eight operations count a second forward. Here nothing is recomputed": lambda g: g.multiply * 8 / 6,
                "that is as if one replica had all GPUs. Each replica reads m micro-batches of its own": (
                    lambda g: g.multiply / g.dp
                ),
                "dp is missing among the GPUs. All of them share the work of all replicas": (
                    lambda g: g.multiply * g.dp
                ),
                "that is one micro-batch. A pipeline has m of them": lambda g: g.multiply / g.m,
                "with the peak of the data sheet? Products reach less": lambda g: g.multiply * g.reached / g.peak,
                "all of it on one GPU? They share the work": lambda g: g.multiply * g.gpus,
                _MS: lambda g: 1e3 * g.multiply,
            }, collective=False),
            Ask("tp_s", "s", lambda g: g.along_tp, {
                "that is one micro-batch. A pipeline has m of them": lambda g: g.along_tp / g.m,
                "those are all L layers. A stage has L / pp of them": lambda g: g.along_tp * g.pp,
                "that is half of it. Backward adds up twice in each layer, too, and each sum goes around its ring "
                "twice": lambda g: g.along_tp / 2,
                "one sum in each layer? There are two blocks, and both go forward and backward": (
                    lambda g: g.along_tp / _SUMS
                ),
                "on the cards? The ranks along tp are in one node": lambda g: g.along_tp * g.fast / g.slow,
                "an all-reduce in a ring sends 2 (tp - 1) / tp of the whole": lambda g: g.along_tp / ring_share(g.tp),
                "four bytes each? bf16 has two": lambda g: 2 * g.along_tp,
                "with numbers in place of bytes? In bf16 each has two": lambda g: g.along_tp / BF16,
                _MS: lambda g: 1e3 * g.along_tp,
            }, collective=False),
            Ask("bubble_s", "s", lambda g: g.bubble, {
                "a GPU is also at its micro-batch while it adds up along tp. The bubble is a share of both": (
                    lambda g: g.multiply * (g.pp - 1) / g.m
                ),
                "p stages? The others are waited for, which are pp - 1": lambda g: g.busy * g.pp / g.m,
                "(pp - 1) / (m + pp - 1) is the bubble over the *whole*. Over busy time it is (pp - 1) / m": (
                    lambda g: g.busy * (g.pp - 1) / (g.m + g.pp - 1)
                ),
                "those are pp - 1 whole steps. A GPU waits for pp - 1 micro-batches": lambda g: g.busy * (g.pp - 1),
                _MS: lambda g: 1e3 * g.bubble,
            }, follows=lambda own, g: (own["multiply_s"] + own["tp_s"]) * (g.pp - 1) / g.m, collective=False),
            Ask("dp_s", "s", lambda g: g.along_dp, {
                "a GPU has a (tp · pp)-th of the gradients, and averages no others": (
                    lambda g: g.along_dp * g.pp * g.tp, lambda g: g.along_dp * g.pp, lambda g: g.along_dp * g.tp
                ),
                "for each micro-batch? Gradients are added up first, and averaged once": lambda g: g.along_dp * g.m,
                "on the wires inside? The replicas are in other nodes": lambda g: g.along_dp * g.slow / g.fast,
                "all cards for one ring? Each GPU of a node is in a ring of its own along dp, and tp rings share the "
                "cards": lambda g: g.along_dp / g.tp,
                "that is a textbook's ring, with one card for itself. Here tp rings share all cards of a node": (
                    lambda g: g.along_dp * g.cards / g.tp
                ),
                "an all-reduce in a ring sends 2 (dp - 1) / dp of the whole": (
                    lambda g: g.along_dp / ring_share(g.dp), lambda g: g.along_dp / 2
                ),
                "four bytes each? bf16 has two": lambda g: 2 * g.along_dp,
                "with numbers in place of bytes? In bf16 each has two": lambda g: g.along_dp / BF16,
                "that is what nothing hides. First all of it is asked": lambda g: g.exposed,
                _MS: lambda g: 1e3 * g.along_dp,
            }, collective=False),
        ), "right: two parts grow with the work of a GPU, one with the stages, and one with what a GPU holds"),
        "step": Group(2, (
            Ask("exposed_s", "s", lambda g: g.exposed, {
                "nothing hides it at all? Gradients travel while the last backward goes on": lambda g: g.along_dp,
                "that is hidden behind a whole micro-batch. Its forward comes before any gradient": (
                    lambda g: max(0.0, g.along_dp - g.busy / g.m)
                ),
                "that is hidden behind products alone. Backward waits along tp, too, and gradients travel meanwhile": (
                    lambda g: max(0.0, g.along_dp - _BACKWARD * g.multiply / g.m)
                ),
                "a third? Backward computes twice as much as forward, which makes two thirds of a micro-batch": (
                    lambda g: max(0.0, g.along_dp - g.busy / g.m / 3)
                ),
                "all of it is hidden, or more than that? It would take all backwards, and before the last one the sum "
                "is not complete": (
                    lambda g: max(0.0, g.along_dp - _BACKWARD * g.busy), lambda g: g.along_dp - _BACKWARD * g.busy
                ),
            }, follows=lambda own, g: max(
                0.0, own["dp_s"] - _BACKWARD * (own["multiply_s"] + own["tp_s"]) / g.m
            ), collective=False),
            Ask("step_s", "s", lambda g: g.whole, {
                "the messages along dp count only as far as nothing hides them": (
                    lambda g: g.busy + g.bubble + g.along_dp
                ),
                "what of dp is exposed is missing": lambda g: g.busy + g.bubble,
                "the bubble is missing": lambda g: g.busy + g.exposed,
                "the time along tp is missing": lambda g: g.multiply + g.bubble + g.exposed,
            }, follows=lambda own, g: sum(own[name] for name in ("multiply_s", "tp_s", "bubble_s", "exposed_s")),
            collective=False),
            Ask("mfu", "", lambda g: g.mfu, {
                PERCENT: lambda g: 100 * g.mfu,
                "that is the share of the step in which a GPU multiplies. It does so below the peak": (
                    lambda g: g.multiply / g.whole
                ),
            }, follows=lambda own, g: g.flops / (g.gpus * g.peak * own["step_s"]), collective=False),
        ), "right: the model's own operations, over what all GPUs could have done in a step"),
        "fewer": Group(1, (
            Ask("fewer_s", "s", lambda g: g.fewer.whole, {
                "that is no longer. With half as many micro-batches a GPU waits twice as long for other stages": (
                    lambda g: g.whole
                ),
                "the bubble has doubled, but so has the backward behind which gradients hide": (
                    lambda g: g.busy + 2 * g.bubble + g.exposed
                ),
                "the last backward is twice as long and hides more, but the bubble has doubled": (
                    lambda g: g.busy + g.bubble + g.fewer.exposed
                ),
                "everything has doubled? A GPU reads as many tokens as before": lambda g: 2 * g.whole,
            }, follows=lambda own, g: own["multiply_s"] + own["tp_s"] + 2 * own["bubble_s"] + max(
                0.0, own["dp_s"] - 2 * _BACKWARD * (own["multiply_s"] + own["tp_s"]) / g.m
            ), collective=False),
        ), "right: larger micro-batches hide more of dp, and make the bubble longer"),
    },
    hints=(
        "All GPUs together do 6 P operations for each token of the step. It has dp · m micro-batches.",
        "Along tp: L / pp layers, four sums each, m times. A sum sends 2 (tp - 1) / tp of an activation of two bytes "
        "a number, on the wires inside.",
        "The bubble is (pp - 1) / m of all the time in which a GPU is at its micro-batches, multiplying or adding up.",
        "Along dp a GPU sends 2 (dp - 1) / dp of its P / (tp · pp) gradients, two bytes each. Its ring gets a tp-th of "
        "cards · card. The backward of the last micro-batch hides two thirds of (multiply_s + tp_s) / m of that.",
        "Half as many micro-batches: the work of a GPU stays, the bubble doubles, and the last backward is twice as "
        "long. Compute what is exposed once more.",
    ),
)  # fmt: skip
