"""Of the loaders' states a checkpoint kept each entry from one rank only, so every rank went on from a mixture of them.

`dcp.save` takes what has the same key on several ranks for copies, and lets the rank write it that has least to write
so far. Here each rank packs its own documents into rows, and its state is its place among them and the tokens that are
left. Every rank got back one rank's place and the other's tokens. Nothing warns of it. A key for each rank mends it,
as in the second thread. When the first was written, only rank 0's entries were saved. The third, of tensors, says why
equal keys have to mean copies: nobody compares them, since it would cost too much.
"""

import itertools
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

SCRIPT = {
    "library": "torch",
    "links": ["pytorch/torchtitan#291", "pytorch/torchtitan#279", "pytorch/pytorch#120356"],
    "pins": "torch==2.13.0 torchdata==0.11.0",
    "ranks": 2,
}
DOCUMENTS, LONGEST, ROW, BEFORE = 64, 60, 32, 12  # rows of each rank before the run stopped


class Packed(IterableDataset):
    """A rank's share of the documents as rows of equal length; each token is its number among all."""

    def __init__(self, rank, ranks):
        lengths = torch.randint(1, LONGEST, [DOCUMENTS], generator=torch.Generator().manual_seed(0))
        ends = [0, *lengths.cumsum(0).tolist()]
        self.tokens, self.mine = ends[-1], list(itertools.pairwise(ends))[rank::ranks]
        self.place, self.left = 0, []

    def __iter__(self):
        while self.left or self.place < len(self.mine):
            while len(self.left) < ROW and self.place < len(self.mine):
                self.left += range(*self.mine[self.place])
                self.place += 1
            row, self.left = self.left[:ROW], self.left[ROW:]
            yield row

    def state_dict(self):
        return {"place": self.place, "left": self.left}

    def load_state_dict(self, state):
        self.place, self.left = state["place"], state["left"]


def main(way, folder):
    """Two ranks read some rows and save; two new loaders load and read the rest."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    key = f"loader_{rank}" if way == "mended" else "loader"
    data = Packed(rank, ranks)
    loader = StatefulDataLoader(data, batch_size=None)
    rows = list(itertools.islice(loader, BEFORE))
    dcp.save({key: loader}, checkpoint_id=folder)
    loader = StatefulDataLoader(Packed(rank, ranks), batch_size=None)
    dcp.load({key: loader}, checkpoint_id=folder)
    told = [None] * ranks
    dist.all_gather_object(told, [*itertools.chain(*rows, *loader)])
    read = [*itertools.chain(*told)]
    lost, twice = data.tokens - len(set(read)), len(read) - len(set(read))
    if rank == 0 and (lost or twice):
        print(f"{lost} of {data.tokens} tokens never read, and {twice} read twice", flush=True)
    elif rank == 0:
        print(f"fine: all {data.tokens} tokens, each once", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return bool(lost or twice)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
