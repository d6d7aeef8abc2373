"""The median along a dimension that was expanded reads memory that is not the tensor's, in silence.

An expanded dimension has the stride 0: its numbers are one number in memory, told several times. `median` with a `dim`,
and `nanmedian`, walk over it as if they lay side by side. So rows of equal numbers come back as others' numbers, or as
whatever stood behind them. A copy by `contiguous` mends it. It met an oracle of lesson 10: if all workers send the same
gradient, their median is that gradient. We found no thread that tells of it; the one of the link is of other strides,
on a GPU, and mended.
"""

import sys

import torch

SCRIPT = {
    "library": "torch",
    "links": ["pytorch/pytorch#46814"],
    "pins": "torch==2.13.0",
    "ranks": 0,
}
WORKERS = 4


def main(way, folder):
    """The same gradient of five numbers from each worker."""
    gradient = torch.arange(5.0)
    of_workers = gradient.unsqueeze(1).expand(-1, WORKERS)
    found = (of_workers.contiguous() if way == "mended" else of_workers).median(1).values
    wrong = int((found != gradient).sum())
    if not wrong:
        print(f"fine: the median of {WORKERS} equal gradients is that gradient")
    else:
        print(f"{wrong} of {len(gradient)} medians of {WORKERS} equal numbers are not that number")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
