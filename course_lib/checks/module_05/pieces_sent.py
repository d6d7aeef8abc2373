"""05.1 and 05.8: which part of a weight a rank has, and what a step of tensor-parallel training sends."""

from __future__ import annotations

import random
from dataclasses import replace
from math import prod
from typing import NamedTuple

from course_lib.checks.kit.sheet import Ask, Group, NumberExercise
from course_lib.checks.kit.spec import BF16, FP32
from course_lib.config import ModelConfig, load_model
from course_lib.costs.comm.tensor import SequenceParallel, TensorRow, rows_traffic, tensor_rows

# 05.1 ---------------------------------------------------------------------------------------------------------------


class Shapes(NamedTuple):
    """A Llama's width H, feed-forward width F, heads, kv heads and a head's numbers; ranks, one of them, more ranks;
    and the sides of a small MLP.
    """

    H: int
    F: int
    heads: int
    kv: int
    head: int
    p: int
    rank: int
    many: int
    ins: int
    hidden: int
    outs: int

    @property
    def copies(self) -> int:
        """Ranks with the same kv head, where there are `many`."""
        return self.many // self.kv

    @property
    def parameters(self) -> int:
        """Of the MLP."""
        return (self.ins + 1) * self.hidden + (self.hidden + 1) * self.outs

    def on_rank(self, ranks: int) -> int:
        """Those on each of so many ranks: weight and bias by rows, then columns and a bias."""
        return (self.ins + 1 + self.outs) * self.hidden // ranks + self.outs


def shapes(seed: int) -> Shapes:
    """The 70B on 4 ranks and on 32, and the 6-4-2 MLP, unless an instructor asks for other numbers."""
    if seed == 0:
        one = load_model("llama3_1_70b")
        return Shapes(one.hidden_size, one.ffn_size, one.n_heads, one.n_kv_heads, one.head_size, 4, 2, 32, 6, 4, 2)
    draw = random.Random(seed)
    p, kv, queries, copies, head = draw.choice(_ATTENTION)
    width = kv * queries * head
    inner = width * draw.choice((5, 7, 9, 11)) // 2  # no rank's first row of F is one of H
    mlp = (draw.randint(5, 12), 4 * draw.randint(2, 6), 2 * draw.randint(1, 4))
    return Shapes(width, inner, kv * queries, kv, head, p, draw.randrange(2, p), kv * copies, *mlp)


# Ranks, kv heads, query heads and copies of each, numbers of a head. What a rank has of the kv heads,
# and what else a learner may count, are different numbers.
_ATTENTION = [
    (p, kv, queries, copies, head)
    for p in (4, 8)
    for kv in (8, 16, 24)
    for queries in (4, 5, 6, 12)
    for copies in (2, 3, 4, 5)
    for head in (64, 96, 128)
    if len({kv // p, kv, copies, 1}) == 4 and queries not in (copies, kv // p)
]

ROWS = "torch stores (out, in): the outputs of y = x W^T are the *rows* of `weight`"

_WHO_HAS_WHAT = NumberExercise(
    key="05.1",
    title="who has which rows and columns",
    given=shapes,
    levels={
        "cuts": Group(2, (
            Ask("column_rows", "rows", lambda g: g.F // g.p, {
                f"that is a cut of the inputs. Column-parallel cuts the outputs, and {ROWS}": lambda g: g.H // g.p,
                "all of them? Then nothing is cut": lambda g: g.F,
                "that is the number of inputs, which a rank needs all of": lambda g: g.H,
            }),
            Ask("column_columns", "columns", lambda g: g.H, {
                "the outputs are cut, and each of them needs every input": lambda g: g.H // g.p,
                f"those are outputs; {ROWS}": (lambda g: g.F // g.p, lambda g: g.F),
            }),
            Ask("column_first_row", "", lambda g: g.rank * (g.F // g.p), {
                "ranks count from 0: the rank before it has those rows": lambda g: (g.rank - 1) * (g.F // g.p),
                "that is where its rows end, and the next rank's begin": lambda g: (g.rank + 1) * (g.F // g.p),
                "counted from 1? The first row is row 0": lambda g: g.rank * (g.F // g.p) + 1,
                "that is a cut of the inputs": lambda g: g.rank * (g.H // g.p),
                "that is where the first rank's rows begin; the ranks before yours have theirs first": 0,
            }, follows=lambda own, g: g.rank * own["column_rows"]),
            Ask("row_rows", "rows", lambda g: g.H, {
                "row-parallel cuts the inputs, and a rank has a term of *every* output": lambda g: g.H // g.p,
                "those are the inputs": lambda g: g.F,
                "rows and columns changed places: nn.Linear(F, H) has a `weight` of H rows, whose columns are cut": (
                    lambda g: g.F // g.p
                ),
            }),
            Ask("row_columns", "columns", lambda g: g.F // g.p, {
                "all of them? Then nothing is cut": lambda g: g.F,
                "that is a cut of the outputs; `weight` is (H, F) here": lambda g: g.H // g.p,
                "rows and columns changed places: nn.Linear(F, H) has a `weight` of F columns, which are cut": (
                    lambda g: g.H
                ),
            }),
        ), "right. Column and row are those of Megatron's Y = X A; torch's `weight` is A turned over"),
        "mlp": Group(2, (
            Ask("mlp_per_rank", "parameters", lambda g: g.on_rank(2), {
                "half of all? layer2's bias belongs to the finished sum, so every rank has all of its numbers": (
                    lambda g: g.parameters / 2
                ),
                "layer1's bias goes with layer1's outputs, so it is cut too": lambda g: g.on_rank(2) + g.hidden // 2,
                "those are the weights; there are biases too": lambda g: (g.ins + g.outs) * g.hidden // 2,
                "that is all of the model": lambda g: g.parameters,
                "is layer2's bias on no rank? It belongs to the finished sum, so every rank has it": (
                    lambda g: g.on_rank(2) - g.outs
                ),
            }),
            Ask("mlp_on_four", "parameters", lambda g: g.on_rank(4), {
                "a quarter of all? layer2's bias is whole on every rank": lambda g: g.parameters / 4,
                "nearly: of layer2's bias every rank has all numbers, not half of them": (
                    lambda g: g.on_rank(4) - g.outs // 2
                ),
                "layer1's bias is cut with layer1's outputs": lambda g: g.on_rank(4) + g.hidden * 3 // 4,
                "is layer2's bias on no rank? Every rank has all of its numbers": lambda g: g.on_rank(4) - g.outs,
            }),
            Ask("mlp_twice", "parameters", lambda g: g.outs, {
                "of layer1's bias each rank has its own part": lambda g: g.hidden + g.outs,
                "some parameter is whole on both ranks, since its sum is": 0,
            }, follows=lambda own, g: 2 * own["mlp_per_rank"] - g.parameters),
        ), "right: more than half of them on each rank, because layer2's bias cannot be cut"),
        "attention": Group(2, (
            Ask("q_rows", "rows", lambda g: g.H // g.p, {
                "those are heads; each has several rows": lambda g: g.heads // g.p,
                "that is one head": lambda g: g.head,
                "those are the heads of all ranks; a rank has some of them, and each has several rows": (
                    lambda g: g.heads
                ),
                "q is cut by its outputs, by whole heads": lambda g: g.H,
            }),
            Ask("k_rows", "rows", lambda g: g.kv // g.p * g.head, {
                "all of k, or as many as of q? A rank has some of the kv heads, and there are fewer of them": (
                    lambda g: g.H // g.p, lambda g: g.kv * g.head
                ),
                "those are heads; each has several rows": lambda g: g.kv // g.p,
            }),
            Ask("o_columns", "columns", lambda g: g.H // g.p, {
                "o takes the heads that this rank has, so its *inputs* are cut": lambda g: g.H,
                "o takes one input for each number of a query head": lambda g: g.kv // g.p * g.head,
            }, follows=lambda own, g: own["q_rows"]),
            Ask("k_rows_on_many", "rows", lambda g: g.head, {
                "a head would be cut in pieces; it stays whole, and is copied": lambda g: g.kv * g.head // g.many,
                "every rank has the kv head of its own queries, not all of them": lambda g: g.kv * g.head,
                "that is where there are fewer ranks than kv heads": lambda g: g.kv // g.p * g.head,
            }),
            Ask("ranks_with_the_first_kv_head", "ranks", lambda g: g.copies, {
                "those are heads, all kv heads or the query heads that ask one of them": (
                    lambda g: g.kv, lambda g: g.heads // g.kv
                ),
                "all of them? Each has only the kv head that its queries ask": lambda g: g.many,
                "fewer kv heads than ranks: each is on several": 1,
                "that is how many kv heads a rank has if there are fewer ranks than kv heads": lambda g: g.kv // g.p,
            }),
        ), "right. Heads stay whole, so k has rows for whole heads, copied where there are more ranks than kv heads"),
    },
    hints=(
        "nn.Linear(in, out) has a `weight` of shape (out, in). Column-parallel: each rank computes some outputs. "
        "Row-parallel: each rank takes some inputs.",
        "The MLP is cut by layer1's outputs and layer2's inputs, which are the same hidden numbers. "
        "Write down the shapes of four tensors for one rank.",
        "q, k and v are cut by outputs, by whole heads; o by its inputs. More ranks than kv heads: ranks / kv heads "
        "neighbours have the same one.",
    ),
)  # fmt: skip

# 05.8 ---------------------------------------------------------------------------------------------------------------


class Stack(NamedTuple):
    """Ranks, layers, tokens of the one sequence, width and vocabulary."""

    p: int
    L: int
    S: int
    H: int
    V: int

    @property
    def config(self) -> ModelConfig:
        """The 8B with so many layers."""
        return replace(load_model("llama3_1_8b"), n_layers=self.L)

    def rows(self, form: SequenceParallel | None = None) -> tuple[TensorRow, ...]:
        """The calls of a step."""
        return tensor_rows(self.config, tp=self.p, batch=1, sequence=self.S, sequence_parallel=form)

    def blocks(self, form: SequenceParallel | None = None) -> list[TensorRow]:
        """Those of the layers."""
        return [row for row in self.rows(form) if row.where in ("attention", "feed-forward")]

    def layer(self, form: SequenceParallel | None = None) -> float:
        """Bytes that a rank sends for a layer in forward and backward, in bf16."""
        return rows_traffic(self.blocks(form), tp=self.p, itemsize=BF16).sent_bytes[0] / self.L

    def calls(self, form: SequenceParallel | None = None) -> int:
        """Collectives of all layers."""
        return sum(row.times for row in self.blocks(form))

    @property
    def whole(self) -> int:
        """Bytes of all activations between two blocks, in bf16."""
        return BF16 * self.S * self.H

    @property
    def gather(self) -> float:
        """Bytes that a rank sends if all logits are gathered, in fp32."""
        return (self.p - 1) / self.p * FP32 * self.S * self.V

    @property
    def loss(self) -> int:
        """Numbers in the loss's all-reduces."""
        return sum(row.times * prod(row.shape) for row in self.rows() if row.where == "loss")

    @property
    def norms(self) -> int:
        """Numbers of the norms' gradients."""
        return sum(prod(row.shape) for row in self.rows("keep") if row.when == "step")


def stack(seed: int) -> Stack:
    """The 8B on 8 ranks, unless an instructor asks for other numbers."""
    draw, one = random.Random(seed), load_model("llama3_1_8b")
    L, S = (32, 8192) if seed == 0 else (draw.choice((24, 40, 48)), draw.choice((2048, 4096)))
    return Stack(8, L, S, one.hidden_size, one.vocab_size)


FORWARD = "that is forward alone; backward has as many"
ONE_FOR_THREE = (
    "q, k and v read the same x: their terms are added up first, and one all-reduce serves the three; gate and up "
    "likewise"
)
NUMBERS = "numbers? In bf16 each of them has 2 bytes"
ONE_BLOCK = "a layer has two blocks, attention and the feed-forward one"

_BYTES = NumberExercise(
    key="05.8",
    title="bytes and calls of a step",
    given=stack,
    ranks=lambda g: g.p,
    levels={
        "layers": Group(2, (
            Ask("calls", "all-reduces", lambda g: g.calls(), {
                FORWARD: lambda g: 2 * g.L,
                "one for each of a layer's seven matrices, forward and backward? One for each *pair* is enough":
                    lambda g: 14 * g.L,
                f"seven in a layer? {ONE_FOR_THREE}": lambda g: 7 * g.L,
                f"{ONE_BLOCK}, each with a sum in forward and one in backward": lambda g: g.L,
                "that is one layer": 4,
                "twice as many? An all-reduce is one call; it is sequence parallelism that makes two of it":
                    lambda g: 8 * g.L,
                "with embedding, head or loss? The layers' own are asked": (
                    lambda g: 4 * g.L + 2, lambda g: 4 * g.L + 5
                ),
            }, collective=False),
            Ask("layer_sends", "bytes", lambda g: g.layer(), {
                "half of it: forward alone, where backward sends as much? Numbers, where one of bf16 has 2 bytes? "
                "Or (p-1)/p, which is an all-gather's?":
                    lambda g: g.layer() / BF16,
                "one all-reduce; a layer has four in a step": lambda g: g.layer() / 4,
                "four times the activations once: a ring sends 2(p-1)/p of them": lambda g: 4 * g.whole,
                "four times the activations twice: a ring sends 2(p-1)/p of them, not quite twice":
                    lambda g: 8 * g.whole,
                f"seven all-reduces? {ONE_FOR_THREE}": lambda g: 7 / 4 * g.layer(),
                "that is all layers": lambda g: g.L * g.layer(),
                "4 bytes a number? In bf16 it has 2": lambda g: 2 * g.layer(),
            }, collective=False),
        ), "right: 2 all-reduces forward and 2 backward in each layer, whose bytes grow with the tokens"),
        "ends": Group(2, (
            Ask("loss_numbers", "numbers", lambda g: g.loss, {
                "that is one of three: the maximum, the sum of powers, and the target's logit": lambda g: g.S,
                "two? The maximum has to be exchanged before the powers are summed": lambda g: 2 * g.S,
                "those are logits; they stay where they are": lambda g: g.S * g.V,
                "those are bytes": lambda g: FP32 * g.loss,
                "that is for one token; the sequence has S of them": 3,
            }, collective=False),
            Ask("gather_sends", "bytes", lambda g: g.gather, {
                "that is all-reduced; a ring's all-gather has one phase": lambda g: 2 * g.gather,
                "all logits? A rank's own part need not come to it, and it passes on p-1 parts":
                    lambda g: FP32 * g.S * g.V,
                "that counts numbers; one of fp32 has 4 bytes": lambda g: g.gather / FP32,
                "2 bytes a number? The logits are fp32, of 4 bytes": lambda g: g.gather / 2,
                "p-1 whole copies? A rank passes on p-1 *parts*": lambda g: g.p * g.gather,
                "that is this rank's part once; it passes on p-1 parts": lambda g: FP32 * g.S * g.V / g.p,
            }, collective=False),
        ), "right. Three numbers for each token travel, where a gather would send a row of the vocabulary"),
        "sequence": Group(3, (
            Ask("spread_calls", "calls", lambda g: g.calls("keep"), {
                "as many as before? Each all-reduce has become two calls": lambda g: 4 * g.L,
                "that is with the input gathered again in backward": lambda g: g.calls("regather"),
                "that is one layer": 8,
            }, follows=lambda own, g: 2 * own["calls"], collective=False),
            Ask("spread_sends", "bytes", lambda g: g.layer("keep"), {
                "half of it? An all-reduce is a reduce-scatter *and* an all-gather": lambda g: g.layer() / 2,
                NUMBERS: lambda g: g.layer("keep") / BF16,
                "twice as much? There are twice as many calls, each of half an all-reduce's bytes":
                    lambda g: 2 * g.layer(),
                "that is with the input gathered again in backward": lambda g: g.layer("regather"),
            }, follows=lambda own, g: own["layer_sends"], collective=False),
            Ask("regather_sends", "bytes", lambda g: g.layer("regather"), {
                "as before? In backward each block's input is gathered once more": lambda g: g.layer("keep"),
                NUMBERS: lambda g: g.layer("regather") / BF16,
                f"one more gather; {ONE_BLOCK}": lambda g: 9 / 8 * g.layer("keep"),
                "a gather is half an all-reduce: two more of them, not two all-reduces":
                    lambda g: 1.5 * g.layer("keep"),
            }, follows=lambda own, g: 1.25 * own["spread_sends"], collective=False),
            Ask("norm_numbers", "numbers", lambda g: g.norms, {
                "each layer has two norms, and there is one before the head": lambda g: g.L * g.H,
                "there is one more norm, before the head": lambda g: 2 * g.L * g.H,
                "that is one norm": lambda g: g.H,
                "that is the number of norms; the weight of each has H numbers": lambda g: 2 * g.L + 1,
                "one for each layer and the last one? A layer has two": lambda g: (g.L + 1) * g.H,
            }, collective=False),
        ), "right: not one byte more for the same sums, a quarter more if the input is not kept, and the norms"),
    },
    hints=(
        "A layer has two blocks. Each enters with a map cut by its outputs and leaves with one cut by its inputs: one "
        "all-reduce of all S x H activations in forward, one in backward.",
        "In a ring all-reduce a rank sends 2(p-1)/p of the tensor, in an all-gather or a reduce-scatter half of that.",
        "Sequence parallelism: gather to enter, reduce-scatter to leave; backward turns each into the other. A block "
        "that kept only its own positions gathers its input once more for the gradient of its weights.",
        "A norm's weight has H numbers. There are two norms in a layer, and one before the head.",
    ),
)  # fmt: skip
