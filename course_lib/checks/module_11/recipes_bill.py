"""11.1: what five recipes of fine-tuning need: weights, what is trained, and what forward keeps for backward."""

from __future__ import annotations

import random
from itertools import count
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise
from course_lib.checks.kit.spec import BF16
from course_lib.config import ModelConfig
from course_lib.costs.model.activations import layer_activations
from course_lib.costs.model.parameters import model_parameters
from course_lib.units import GB

_ALL_STATES = 16  # weight and gradient in bf16, and 12 bytes of AdamW
_SHAPES = ((2048, 512, 24), (3072, 1024, 28), (4096, 1024, 32), (5120, 1024, 40))  # width, of keys, layers
_GPUS = (24, 48, 80, 141)  # GB


class _Bill(NamedTuple):
    """A model's width, that of its keys, inner width, layers, parameters; r, tokens; how codes are scaled; a GPU.

    `layer` are the bytes that forward keeps of a layer and a token.
    """

    H: int
    KV: int
    F: int
    L: int
    P: int
    r: int
    T: int
    layer: int
    block: int
    outer: int
    gpu_gb: int

    @property
    def maps(self) -> int:
        """Numbers in the matrices of all layers."""
        return self.L * (2 * self.H**2 + 2 * self.H * self.KV + 3 * self.H * self.F)

    @property
    def lora(self) -> int:
        """Numbers of A and B beside all of them."""
        return self.r * self.L * (4 * self.H + 2 * (self.H + self.KV) + 3 * (self.H + self.F))

    @property
    def of_qv(self) -> int:
        """Beside queries and values alone."""
        return self.r * self.L * (2 * self.H + self.H + self.KV)

    @property
    def bits(self) -> float:
        """Of a number in codes, with its share of the scales."""
        return 4 + 8 / self.block + 32 / (self.block * self.outer)

    @property
    def whole(self) -> int:
        """Bytes of all weights in bf16."""
        return BF16 * self.P

    def in_codes(self, bits: float) -> float:
        """Bytes of weights whose matrices take so many bits a number."""
        return BF16 * (self.P - self.maps) + self.maps * bits / 8

    @property
    def states(self) -> tuple[float, ...]:
        """Of the five recipes: weights, gradients, optimizer."""
        trained = _ALL_STATES * self.lora
        coded = self.in_codes(self.bits) + trained
        return _ALL_STATES * self.P, self.whole + trained, self.whole + _ALL_STATES * self.of_qv, coded, coded

    @property
    def kept(self) -> int:
        """Bytes that the layers keep."""
        return self.L * self.layer * self.T

    @property
    def inputs(self) -> int:
        """Bytes of the layers' inputs."""
        return BF16 * self.H * self.T * self.L

    @property
    def recomputed(self) -> int:
        """The inputs, and one layer that is recomputed."""
        return self.inputs + self.layer * self.T

    @property
    def bills(self) -> tuple[float, ...]:
        """Of the five recipes, all in all."""
        kept = (*[self.kept] * 4, self.recomputed)
        return tuple(state + more for state, more in zip(self.states, kept, strict=True))

    def first(self, sums: tuple[float, ...]) -> int:
        """The number of the first recipe that fits into the GPU; 0 if none does."""
        return next((number for number, one in enumerate(sums, start=1) if one <= self.gpu_gb * GB), 0)


def _given(seed: int) -> _Bill:
    """The 8B and a sequence of 8,192 tokens on 24 GB, unless an instructor asks for other numbers."""
    if seed == 0:
        return _bill(4096, 1024, 32, ffn=14336, rank=16, tokens=8192, block=64, outer=256, gpu_gb=24)
    for attempt in count():
        draw = random.Random(f"{seed} {attempt}")
        H, KV, L = draw.choice(_SHAPES)
        found = _bill(
            H, KV, L, ffn=draw.choice((2, 3)) * H + 1024, rank=draw.choice((4, 8, 32)),
            tokens=draw.choice((2048, 4096, 12288)), block=draw.choice((32, 64, 128)), outer=draw.choice((128, 256)),
            gpu_gb=draw.choice(_GPUS),
        )  # fmt: skip
        if found.first(found.bills) > 1:
            return found
    raise AssertionError


def _bill(H: int, KV: int, L: int, *, ffn: int, rank: int, tokens: int, block: int, outer: int, gpu_gb: int) -> _Bill:
    config = ModelConfig(
        name="", hidden_size=H, n_layers=L, n_heads=H // 128, n_kv_heads=KV // 128, ffn_size=ffn, vocab_size=128_256,
        tied=False,
    )  # fmt: skip
    kept = layer_activations(config, batch=1, sequence=tokens, itemsize=BF16, fused_norms=True)
    layer = sum(one.nbytes for one in kept) // tokens
    return _Bill(H, KV, ffn, L, model_parameters(config), rank, tokens, layer, block, outer, gpu_gb)


_FROZEN = "nothing of a frozen weight is kept but itself: it has no gradient and no moments"
_SIXTEEN = "what is trained takes 16 bytes a number, with gradient, fp32 copy and two moments"
_ONE_LAYER = "that is one layer. There are L"
_NOT_CODED = "embedding, head and norms stay in bf16. Only the matrices of the layers are in codes"

_RECIPES = NumberExercise(
    key="11.1",
    title="the bill of five recipes",
    given=_given,
    levels={
        "trained": Group(2, (
            Ask("map_numbers", "numbers", lambda g: g.maps, {
                _ONE_LAYER: lambda g: g.maps / g.L,
                "all four of attention as large as H x H? Keys and values are narrower": (
                    lambda g: g.L * (4 * g.H**2 + 3 * g.H * g.F)
                ),
                "a block has three matrices, not two: gate, up and down": (
                    lambda g: g.maps - g.L * g.H * g.F
                ),
                "that is all of the model, with embedding, head and norms": lambda g: g.P,
                "those are attention's alone": lambda g: g.L * (2 * g.H**2 + 2 * g.H * g.KV),
            }, collective=False),
            Ask("full_bytes", "bytes", lambda g: _ALL_STATES * g.P, {
                "weights alone? Each is trained, and that takes 16 bytes": lambda g: g.whole,
                "weights and gradients alone? AdamW has 12 bytes for each parameter": lambda g: 4 * g.P,
                "the matrices alone? Everything is trained here, embedding and head too": (
                    lambda g: _ALL_STATES * g.maps
                ),
                "the gradients are missing, 2 bytes each": lambda g: 14 * g.P,
            }, collective=False),
            Ask("lora_numbers", "numbers", lambda g: g.lora, {
                _ONE_LAYER: lambda g: g.lora / g.L,
                "those are the A alone, r x inputs. B is trained as well, outputs x r": (
                    lambda g: g.r * g.L * (6 * g.H + g.F)
                ),
                "those are the B alone, outputs x r. A is trained as well, r x inputs": (
                    lambda g: g.r * g.L * (3 * g.H + 2 * g.KV + 2 * g.F)
                ),
                "attention has four matrices and the block three. Which are missing?": (
                    lambda g: g.r * g.L * (4 * g.H + 2 * (g.H + g.KV)), lambda g: g.r * g.L * 3 * (g.H + g.F)
                ),
                "keys and values have fewer outputs than queries, so their B are smaller": (
                    lambda g: g.r * g.L * (8 * g.H + 3 * (g.H + g.F))
                ),
                "that is for r = 1": lambda g: g.lora / g.r,
                "those are queries and values alone": lambda g: g.of_qv,
                "B A is as large as the matrix, but it is never trained as such: count A and B": lambda g: g.maps,
            }, collective=False),
            Ask("lora_bytes", "bytes", lambda g: g.states[1], {
                "the frozen weights have to be there as well, 2 bytes each": lambda g: _ALL_STATES * g.lora,
                _FROZEN: (lambda g: _ALL_STATES * (g.P + g.lora), lambda g: 4 * g.P + _ALL_STATES * g.lora),
                _SIXTEEN: (lambda g: g.whole + BF16 * g.lora, lambda g: g.whole + 14 * g.lora),
                "embedding, head and norms are frozen, and still there": (
                    lambda g: BF16 * g.maps + _ALL_STATES * g.lora
                ),
            }, follows=lambda own, g: g.whole + _ALL_STATES * own["lora_numbers"], collective=False),
            Ask("qv_bytes", "bytes", lambda g: g.states[2], {
                "that is with adapters beside all seven matrices": lambda g: g.states[1],
                "values have fewer outputs than queries": lambda g: g.whole + _ALL_STATES * g.r * g.L * 4 * g.H,
                "the frozen weights have to be there as well, 2 bytes each": lambda g: _ALL_STATES * g.of_qv,
                _SIXTEEN: (lambda g: g.whole + BF16 * g.of_qv, lambda g: g.whole + 14 * g.of_qv),
            }, collective=False),
        ), "right: adapters take away 14 of the 16 bytes, and what is left is nearly all frozen weights"),
        "codes": Group(2, (
            Ask("code_bits", "bits", lambda g: g.bits, {
                "a block's scale in fp32? Scales are codes of 8 bits here, that is the double quantisation": (
                    lambda g: 4 + 32 / g.block
                ),
                "the scales have scales of their own, 32 bits for each `outer` of them": lambda g: 4 + 8 / g.block,
                "a code has 4 bits, and scales come on top": 4,
                "in bytes? Bits are asked": lambda g: g.bits / 8,
                "one fp32 scale for `outer` numbers? It belongs to `outer` blocks": (
                    lambda g: 4 + 8 / g.block + 32 / g.outer
                ),
            }, collective=False, tolerance=1e-4),
            Ask("qlora_bytes", "bytes", lambda g: g.states[3], {
                "the adapters take 16 bytes a number, as before": lambda g: g.in_codes(g.bits),
                _NOT_CODED: lambda g: g.P * g.bits / 8 + _ALL_STATES * g.lora,
                "embedding, head and norms are missing: 2 bytes each": (
                    lambda g: g.maps * g.bits / 8 + _ALL_STATES * g.lora
                ),
                "the matrices are there in codes alone, not in bf16 as well": (
                    lambda g: g.whole + g.maps * g.bits / 8 + _ALL_STATES * g.lora
                ),
                "a code has 4 bits, and scales come on top": lambda g: g.in_codes(4) + _ALL_STATES * g.lora,
                "the adapters are not in codes: what is trained takes 16 bytes a number": (
                    lambda g: g.in_codes(g.bits) + g.lora * g.bits / 8
                ),
            }, follows=lambda own, g: (
                BF16 * (g.P - own["map_numbers"]) + own["map_numbers"] * own["code_bits"] / 8
                + _ALL_STATES * own["lora_numbers"]
            ), collective=False, tolerance=1e-5),
        ), "right: a quarter of the frozen bytes, and the scales of scales cost a hundredth of a bit"),
        "activations": Group(2, (
            Ask("kept_bytes", "bytes", lambda g: g.kept, {
                _ONE_LAYER: lambda g: g.layer * g.T,
                "those are the layers' inputs alone": lambda g: g.inputs,
                "that is of one token. There are T": lambda g: g.L * g.layer,
                "`layer` is in bytes already": lambda g: 2 * g.kept,
            }, collective=False),
            Ask("recomputed_bytes", "bytes", lambda g: g.recomputed, {
                "in backward one layer is recomputed, and all that it keeps is there for a while": (
                    lambda g: g.inputs
                ),
                "the inputs of all layers are kept meanwhile": lambda g: g.layer * g.T,
                "the recomputed layer's input is there twice, kept and made again, as the text counts it": (
                    lambda g: g.inputs + g.layer * g.T - BF16 * g.H * g.T
                ),
                "one input, of the whole model? Each layer keeps its own": lambda g: BF16 * g.H * g.T + g.layer * g.T,
                "an input has 2 bytes a number, in bf16": lambda g: 2 * g.inputs + g.layer * g.T,
                "only one layer at a time is recomputed, the others only have their inputs": (
                    lambda g: g.inputs + g.kept
                ),
            }, collective=False),
            Ask("one_group_bytes", "bytes", lambda g: BF16 * g.H * g.T + g.kept, {
                "and in backward? The whole group is recomputed, and then it keeps everything": (
                    lambda g: BF16 * g.H * g.T
                ),
                "a group keeps one input, its own, and no layer inside of it does": lambda g: g.inputs + g.kept,
                "that is with a group for each layer": lambda g: g.recomputed,
                "nearly: the group's input was kept from forward on": lambda g: g.kept,
            }, follows=lambda own, g: BF16 * g.H * g.T + own["kept_bytes"], collective=False),
        ), "right: recompute layer by layer. All in one group you pay for a second forward and save nothing"),
        "bill": Group(1, (
            Ask("qlora_recomputed", "bytes", lambda g: g.bills[4], {
                "those are weights and states alone": lambda g: g.states[4],
                "those are activations alone": lambda g: g.recomputed,
                "that is without recomputing": lambda g: g.bills[3],
                "nothing is in codes there": lambda g: g.states[1] + g.recomputed,
            }, follows=lambda own, g: own["qlora_bytes"] + own["recomputed_bytes"], collective=False, tolerance=1e-5),
            Ask("first_that_fits", "", lambda g: g.first(g.bills), {
                "activations need room as well": lambda g: (
                    g.first(g.states) if g.first(g.states) != g.first(g.bills) else float("nan")
                ),
                "it fits, but one before it does as well": lambda g: g.first(g.bills) + 1,
                "that does not fit yet": lambda g: g.first(g.bills) - 1,
            }, choice=True, collective=False),
        ), "right: each saver takes away another part, so look first at which part is large"),
    },
    hints=(
        "A layer has seven matrices: queries and output H x H, keys and values H x KV, and three of H x F. Beside one "
        "with `in` inputs and `out` outputs LoRA puts A, r x in, and B, out x r.",
        "A frozen weight has 2 bytes and nothing else. A trained number has 16: weight and gradient 2 each, and an "
        "fp32 copy and two moments of 4 bytes each.",
        "In codes: 4 bits a number. `block` numbers share a code of 8 bits, their scale. `outer` of these scales share "
        "32 bits. So 4 + 8 / block + 32 / (block * outer).",
        "With recomputing every layer keeps its input from forward on: T * H numbers of 2 bytes. In backward one layer "
        "after the other is recomputed, so for a while all of one layer is there. And if the group is the whole "
        "model, what is there then?",
    ),
)  # fmt: skip
