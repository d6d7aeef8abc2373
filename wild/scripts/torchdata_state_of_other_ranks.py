"""A loader that is resumed on another number of ranks goes on without a word, and never sees some rows.

Its state says how far its own rank had come in its own share. On twice as many ranks each share is another one. A
counter of all rows, and one order that every rank computes for itself, resume on any number. Of the threads, in the
first only rank 0's state had been saved, and in the second most ranks found none when they resumed.
"""

import sys

import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

SCRIPT = {
    "library": "torchdata",
    "links": ["pytorch/torchtitan#291", "pytorch/torchtitan#409"],
    "pins": "torchdata==0.11.0",
    "ranks": 0,
}
ROWS, BATCH, BEFORE = 96, 4, 5  # batches of each of the two ranks before the run stopped


def by_states(ranks, states=None):
    """Rows that a run sees: until it is stopped, or to the end of the epoch from the states of an earlier one."""
    seen, kept = [], []
    for rank in range(ranks):
        sampler = StatefulDistributedSampler(range(ROWS), num_replicas=ranks, rank=rank, shuffle=True, seed=0)
        loader = StatefulDataLoader(range(ROWS), batch_size=BATCH, sampler=sampler)
        if states:
            loader.load_state_dict(states[rank % len(states)])
        for number, batch in enumerate(loader, start=1):
            seen += batch.tolist()
            if not states and number == BEFORE:
                kept.append(loader.state_dict())
                break
    return seen, kept


def by_counter(ranks, begin, end):
    """The same by a number: each rank takes its share of every step's rows."""
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0)).tolist()
    each = ranks * BATCH
    steps = [order[start : min(start + each, end)] for start in range(begin, end, each)]
    return [row for rank in range(ranks) for rows in steps for row in rows[rank::ranks]]


def main(way, folder):
    """Two ranks stop in the middle of an epoch, four go on."""
    if way == "mended":
        stopped = 2 * BATCH * BEFORE
        seen = by_counter(2, 0, stopped) + by_counter(4, stopped, ROWS)
    else:
        first, states = by_states(2)
        seen = first + by_states(4, states)[0]
    lost = ROWS - len(set(seen))
    is_fine = len(seen) == ROWS and not lost
    print(f"fine: all {ROWS} rows, each once" if is_fine else f"{lost} of {ROWS} rows never seen")
    return not is_fine


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
