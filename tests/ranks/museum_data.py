"""The text on which the museum's bugs are looked at."""

from __future__ import annotations

import torch

from course_lib.training.batches import Batches

LETTERS = 16
SEQUENCE = 16


def chain(length):
    """Letters that follow each other by chance, some pairs more often than others: a loss that cannot fall to 0."""
    generator = torch.Generator().manual_seed(0)
    odds = torch.rand(LETTERS, LETTERS, generator=generator) ** 4
    text = [0]
    for _ in range(length):
        text.append(int(torch.multinomial(odds[text[-1]], 1, generator=generator)))
    return bytes(text)


BATCHES = Batches(text=chain(SEQUENCE * 32 * 16), batch_size=32, sequence=SEQUENCE)
