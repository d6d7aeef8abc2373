"""01.3 and 01.7: parameters and activations of a decoder of Llama's shape."""

from __future__ import annotations

import math
from typing import NamedTuple

from course_lib.checks.kit.formula import Amounts, Call, Formula, formula_exercise
from course_lib.checks.kit.said import plural
from course_lib.checks.kit.spec import BF16, Level
from course_lib.checks.module_01 import draw
from course_lib.checks.module_01.draw import Shape
from course_lib.config import ModelConfig, load_model
from course_lib.costs.model.activations import checkpointed_activations, layer_activations
from course_lib.costs.model.parameters import model_parameters


class _Model(NamedTuple):
    """Whose parameters are asked."""

    c: ModelConfig


def _drawn(kind: Shape, text: str) -> Call:
    return Call(text=text, arguments=lambda seed: _Model(draw.shape(kind)(seed)))


def _preset(name: str) -> Call:
    return Call(text=load_model(name).name, arguments=lambda seed: _Model(load_model(name)))


def _terms(asked: _Model) -> Amounts:
    """What a count may have too often or too seldom."""
    c = asked.c
    L, H, K = c.n_layers, c.hidden_size, c.kv_size
    return {
        "V x H, one table of the vocabulary": c.vocab_size * H,
        "the width of keys and values: they have n_kv_heads heads, queries have n_heads": L * 2 * H * (H - K),
        "H, the last norm": H,
        "L x H, one norm of each layer": L * H,
        "L x E x H, the routers": L * c.n_experts * H if c.n_experts > 1 else 0,
        "L x E x H x F, one matrix of every feed-forward block": L * c.n_experts * H * c.ffn_size,
        "the feed-forward blocks of all experts but one": L * (c.n_experts - 1) * 3 * H * c.ffn_size,
        "L x H x H, a matrix of every layer": L * H * H,
        "L x H x K, the keys or values of every layer": L * H * K,
    }


PARAMETERS = Formula(
    name="count",
    answer=lambda g: model_parameters(g.c),
    show=lambda g: draw.words(g.c),
    amounts=_terms,
    slips={  # as many numbers as the router of a single block has
        "a norm too many in each layer, or a router, where there is only one block": lambda g: (
            model_parameters(g.c) + g.c.n_layers * g.c.hidden_size if g.c.n_experts == 1 else math.nan
        ),
    },
)

_COUNT = formula_exercise(
    key="01.3",
    title="count the parameters",
    formulas=(PARAMETERS,),
    levels={
        "grouped": Level(
            points=2,
            cases=(_preset("llama3_1_8b"), _drawn("grouped", "another model"), _preset("llama3_1_405b")),
            praise="exact for grouped keys, from a toy to 405 billion",
        ),
        "shapes": Level(
            points=2,
            cases=(
                _drawn("as many kv heads", "as many kv heads as heads"),
                _drawn("one kv head", "one kv head"),
                _drawn("tied", "embedding and head tied"),
            ),
            praise="and for every number of kv heads, tied or not",
        ),
        "experts": Level(
            points=1,
            cases=(_drawn("experts", "a mixture of experts"), _preset("mixtral_8x7b")),
            praise="and for a mixture of experts",
        ),
    },
    hints=(
        "Go through the model from top to bottom: embedding, then one layer times n_layers, the last norm, the head.",
        "A head is H / n_heads wide. Queries have n_heads of them, keys and values n_kv_heads. Attention ends with one "
        "more matrix, H x H.",
        "A SwiGLU block has three matrices of H x F. A norm has H numbers; a layer has two norms, and one comes last.",
        "Tied: the head is the embedding, so count V x H once. Experts: n_experts blocks in each layer, and a router.",
    ),
)


class CountingRun(NamedTuple):
    """Whose activations are asked."""

    c: ModelConfig
    batch: int
    sequence: int
    recompute: bool

    @property
    def whole(self) -> int:
        """Bytes that one layer keeps."""
        kept = layer_activations(self.c, batch=self.batch, sequence=self.sequence, itemsize=BF16, fused_norms=True)
        return sum(saved.nbytes for saved in kept)

    @property
    def input(self) -> int:
        """Bytes of one layer's input."""
        kept = checkpointed_activations(self.c, batch=self.batch, sequence=self.sequence, itemsize=BF16)
        return sum(saved.nbytes for saved in kept)

    @property
    def right(self) -> int:
        """What all layers keep in bf16 on a GPU."""
        others = self.input if self.recompute else self.whole
        return (self.c.n_layers - 1) * others + self.whole

    @property
    def full(self) -> int:
        """Layers that keep everything at the same time."""
        return 1 if self.recompute else self.c.n_layers

    def recomputed(self, number: int) -> float:
        """A wrong number for who recomputes."""
        return number if self.recompute else math.nan


def tensors_of(run: CountingRun) -> Amounts:
    """Bytes that may be missing or too much, in all layers that keep everything. In the first shape no two coincide."""
    c, tokens = run.c, run.batch * run.sequence
    each = run.full * tokens * BF16
    return {
        "a tensor as wide as the model (T x H)": each * c.hidden_size,
        "a tensor as wide as the block (T x F)": each * c.ffn_size,
        "a tensor as wide as the keys (T x K)": each * c.kv_size,
        "keys and values as wide as the queries": 2 * each * (c.hidden_size - c.kv_size),
        "one fp32 number per token, or half of the bytes of two": 2 * each,
        "one fp32 number per token and head": 2 * each * c.n_heads,
        "half of the bytes of one fp32 number per token and head": each * c.n_heads,
        "rotations once for each sequence of the batch": run.full * 4 * (tokens - run.sequence) * c.head_size * BF16,
        "the four tables of rotations": run.full * 4 * run.sequence * c.head_size * BF16,
    }


def _run(kind: Shape, *, recompute: bool, batch: int = 0) -> Call:
    def arguments(seed: int) -> CountingRun:
        sequences = batch or draw.number(f"batch{kind}", seed, 2, 5)
        return CountingRun(
            draw.shape(kind)(seed), sequences, 8 * draw.number(f"sequence{kind}", seed, 5, 20), recompute
        )

    return Call(text="with recompute" if recompute else "everything kept", arguments=arguments)


KEPT = Formula(
    name="number of bytes",
    answer=lambda g: g.right,
    show=lambda g: f"{plural(g.batch, 'sequence')} of {g.sequence}, {draw.words(g.c)}",
    amounts=tensors_of,
    slips={
        "recompute is not looked at: a layer keeps its input alone": lambda g: g.c.n_layers * g.whole,
        "that is one layer; they all wait for backward": lambda g: g.whole,
        "the input of the layer worked on again is counted twice: its first norm's input is the kept one": lambda g: (
            g.recomputed(g.c.n_layers * g.input + g.whole)
        ),
        "the layer that is worked on again keeps the rest too, meanwhile": lambda g: g.recomputed(
            g.c.n_layers * g.input
        ),
        "4 bytes a number? In bf16 it has 2": lambda g: 2 * g.right,
        "2 bytes for the fp32 numbers? They have 4": lambda g: (
            g.right - g.full * g.batch * g.sequence * (4 + 2 * g.c.n_heads)
        ),
    },
)

ACTIVATIONS = formula_exercise(
    key="01.7",
    title="activations, kept or recomputed",
    formulas=(KEPT,),
    levels={
        "kept": Level(
            points=3,
            cases=(
                _run("odd", recompute=False, batch=3),
                _run("as many kv heads", recompute=False),
                _run("one kv head", recompute=False),
            ),
            praise="to the byte, for every number of kv heads",
        ),
        "recompute": Level(
            points=2,
            cases=(_run("odd", recompute=True, batch=3), _run("as many kv heads", recompute=True)),
            praise="inputs of all layers, and all that one layer keeps, whose input is counted once",
        ),
    },
    hints=(
        "Let T = batch * sequence. Write down the shape of what each row of the table keeps, (T, H), (T, F), ...; "
        "add the elements, then times 2 bytes. The fp32 numbers have 4 bytes.",
        "A tensor that two operations read is kept once: the three projections read the same input, and the "
        "output of attention is the input of the next matrix.",
        "In silu(gate) * up there are four tensors of (T, F): what silu reads, the two factors, and their product, "
        "which the last matrix reads.",
        "Recompute: every layer keeps (T, H) in bf16. While backward is in one layer, "
        "that layer keeps all of it as well; its first norm reads the very input that was kept: count it once.",
    ),
)
