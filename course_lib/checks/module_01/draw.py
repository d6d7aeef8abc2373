"""Models and sizes that the text of the exercises does not show: other ones for each seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal

from course_lib.config import ModelConfig

Shape = Literal["grouped", "odd", "one kv head", "as many kv heads", "tied", "experts"]


def shape(kind: Shape) -> Callable[[int], ModelConfig]:
    """Draw a Llama of a kind: no two of its sizes agree, so that no two terms of a formula do."""

    def of(seed: int) -> ModelConfig:
        draw = random.Random(f"{kind}{seed}")
        head_size, groups, kv_heads = draw.choice((8, 16)), draw.choice((3, 5)), draw.choice((2, 4))
        fixed = {"odd": (3, 5), "one kv head": (1, 6), "as many kv heads": (6, 1)}
        kv_heads, groups = fixed.get(kind, (kv_heads, groups))
        hidden = head_size * groups * kv_heads
        return ModelConfig(
            name=kind,
            hidden_size=hidden,
            n_layers=draw.choice((5, 7, 11)),
            n_heads=groups * kv_heads,
            n_kv_heads=kv_heads,
            ffn_size=draw.choice((hidden * 2 + 26, hidden * 3 + 14)),
            vocab_size=draw.choice((1009, 2003, 4001)),
            tied=kind == "tied",
            n_experts=draw.choice((4, 6)) if kind == "experts" else 1,
            experts_per_token=2 if kind == "experts" else 1,
        )

    return of


def words(c: ModelConfig) -> str:
    """The sizes of a drawn model, as a learner reads them."""
    experts = f", {c.n_experts} experts" if c.n_experts > 1 else ""
    tied = ", tied" if c.tied else ""
    return (
        f"{c.n_layers} layers of width {c.hidden_size}, {c.n_heads} heads, {c.n_kv_heads} of keys, "
        f"ffn {c.ffn_size}, vocabulary {c.vocab_size}{tied}{experts}"
    )


def number(name: str, seed: int, low: int, high: int) -> int:
    """A whole number in low..high, another one for each name and seed."""
    return random.Random(f"{name}{seed}").randint(low, high)


def choice(name: str, seed: int, options: tuple[Any, ...]) -> Any:
    """One of `options`, another one for each name and seed."""
    return random.Random(f"{name}{seed}").choice(options)
