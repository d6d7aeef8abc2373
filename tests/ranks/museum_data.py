"""The text on which the museum's bugs are looked at, and how tightly gradients are clipped meanwhile."""

from __future__ import annotations

from dataclasses import replace

import torch

from course_lib.training.batches import Batches

LETTERS = 16
SEQUENCE = 16
MAX_NORM = 0.2  # below every gradient's norm, so that clipping acts in each step


def chain(length):
    """Letters that follow each other by chance, some pairs more often than others: a loss that cannot fall to 0."""
    generator = torch.Generator().manual_seed(0)
    odds = torch.rand(LETTERS, LETTERS, generator=generator) ** 4
    text = [0]
    for _ in range(length):
        text.append(int(torch.multinomial(odds[text[-1]], 1, generator=generator)))
    return bytes(text)


BATCHES = Batches(text=chain(SEQUENCE * 32 * 16), batch_size=32, sequence=SEQUENCE)


def tight(config):
    """The same configuration with that limit, if it has one."""
    return config if config.max_norm is None else replace(config, max_norm=MAX_NORM)
