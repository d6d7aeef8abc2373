"""Evidence in how often the ranks' gradients count each row of the batch; each function gives what it saw, or None."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from course_lib.parallel.table.agreement import listing
from course_lib.verify import counted
from course_lib.verify.evidence import Evidence
from course_lib.verify.gradient_facts import ranks_of
from course_lib.verify.ratios import agrees, in_words

_OFTEN = 1.5  # times as often as the others


def own_share(e: Evidence) -> str | None:
    """On every rank its own share counts, and no other."""
    shares = e.cut.rows()
    if e.counted is None or e.n_shares < 2 or len(e.counted) != len(shares):
        return None
    return "" if all(counted.only(c, rows) for c, rows in zip(e.counted, shares, strict=True)) else None


def own_group(e: Evidence) -> str | None:
    """The ranks fall into groups, and on every rank the shares of its group count."""
    shares = [rows for rows in e.cut.rows() if rows]
    if e.counted is None or not len(e.counted) == e.n_shares == len(shares):
        return None
    groups = [[k for k, rows in enumerate(shares) if counted.some(count, rows)] for count in e.counted]
    whole = all(
        counted.only(c, [row for k in group for row in shares[k]]) for c, group in zip(e.counted, groups, strict=True)
    )
    apart = all(rank in group and all(groups[k] == group for k in group) for rank, group in enumerate(groups))
    sizes = sorted({len(group) for group in groups})
    return " or ".join(map(str, sizes)) if whole and apart and sizes[0] < e.n_shares else None


def own_repeated(e: Evidence) -> str | None:
    """On every rank its own share counts more often than the others, which count alike."""
    shares = e.cut.rows()
    if e.counted is None or e.n_shares < 2 or len(e.counted) != len(shares):
        return None
    found = []
    for rank, count in enumerate(e.counted):
        others = [row for k, rows in enumerate(shares) if k != rank for row in rows]
        own, usual = counted.level(count, shares[rank]), counted.level(count, others)
        if own is None or usual is None or usual <= 0:
            return None
        found.append(own / usual)
    return in_words(found[0]) if found[0] > _OFTEN and all(agrees(one, found[0]) for one in found) else None


def _together(e: Evidence) -> Tensor | None:
    """How often rows count, where all ranks have the same gradient."""
    if not e.counted or any(not torch.allclose(c, e.counted[0], atol=1e-3, equal_nan=True) for c in e.counted):
        return None
    return e.counted[0]


def one_share(e: Evidence) -> str | None:
    """One share counts on all ranks."""
    count = _together(e)
    found = [k for k, rows in enumerate(e.cut.rows()) if count is not None and counted.only(count, rows)]
    return str(found[0]) if found and e.n_shares > 1 else None


def means_of_shares(e: Evidence) -> str | None:
    """Each share weighs the same, however many targets it has."""
    count = _together(e)
    return "" if count is not None and counted.by_targets(count, e.cut.rows(), e.cut) else None


def means_by_rows(e: Evidence) -> str | None:
    """Each share weighs as many as it has rows, however many targets these have."""
    count, sizes = _together(e), [len(part) for part in e.cut.targets.tensor_split(e.n_shares)]
    return "" if count is not None and counted.by_targets(count, e.cut.rows(), e.cut, sizes) else None


def means_of_micro_batches(e: Evidence) -> str | None:
    """Each micro-batch weighs the same within its share, or within the batch."""
    count = _together(e)
    if count is None or e.n_microbatches == 1:
        return None
    return "" if counted.is_mean_of_means(count, e.cut) else None


def shares_missing(e: Evidence) -> str | None:
    """The rows of some shares do not count."""
    return _odd(e, [(ranks_of([k]), rows) for k, rows in enumerate(e.cut.rows())], missing=True)


def micro_batches_missing(e: Evidence) -> str | None:
    """Of each share the same micro-batch does not count, or no other does."""
    parts, m = e.cut.micro_batches(), e.n_microbatches
    if m == 1 or e.counted is None:
        return None
    for chosen in (one for n in range(1, m) for one in combinations(range(m), n)):
        rows = [row for share in parts for k in chosen for row in share[k]]
        if all(counted.only(count, rows) for count in e.counted):
            return f"only micro-batch {', '.join(map(str, chosen))} of {m} counts"
    return None


def shares_repeated(e: Evidence) -> str | None:
    """The rows of some shares count more than once."""
    return _odd(e, [(ranks_of([k]), rows) for k, rows in enumerate(e.cut.rows())], missing=False)


def shares_weighed(e: Evidence) -> str | None:
    """Shares count by different numbers."""
    count = _together(e)
    found = [None if count is None else counted.level(count, rows) for rows in e.cut.rows() if rows]
    levels = [level for level in found if level is not None]
    if len(levels) < len(found) or len({round(level, 2) for level in levels}) < 2:
        return None
    return ", ".join(f"{level:.3g}" for level in levels)


def micro_batches_repeated(e: Evidence) -> str | None:
    """The same micro-batches of each share count more often than the others."""
    count, parts, m = _together(e), e.cut.micro_batches(), e.n_microbatches
    if count is None or m == 1:
        return None
    levels = [counted.level(count, [row for share in parts for row in share[k]]) for k in range(m)]
    known = [level for level in levels if level is not None and level > 0]
    if len(known) < m:
        return None
    chosen = [str(k) for k, level in enumerate(known) if level > _OFTEN * min(known)]
    return f"{', '.join(chosen)} of {m}" if chosen else None


def averaged_early(e: Evidence) -> str | None:
    """On each rank a micro-batch of all shares counts, and of the others its own share's alone."""
    parts, m = e.cut.micro_batches(), e.n_microbatches
    if min(m, len(parts)) == 1 or e.counted is None or len(e.counted) != len(parts):
        return None
    for k in range(m):
        early = [row for share in parts for row in share[k]]
        own = [[row for part in share for row in part] for share in parts]
        if all(counted.only(c, [*early, *rows]) for c, rows in zip(e.counted, own, strict=True)):
            return f"{k} of {m}"
    return None


def rows_missing(e: Evidence) -> str | None:
    """A few rows do not count."""
    return _odd(e, [(f"row {row}", [row]) for row in range(len(e.cut.targets))], missing=True)


def rows_repeated(e: Evidence) -> str | None:
    """A few rows count more than once."""
    return _odd(e, [(f"row {row}", [row]) for row in range(len(e.cut.targets))], missing=False)


def _odd(e: Evidence, groups: Sequence[tuple[str, Sequence[int]]], *, missing: bool) -> str | None:
    count = _together(e)
    if count is None:
        return None
    odd = counted.odd_rows(count)[0 if missing else 1]
    found = [(name, rows) for name, rows in groups if rows and set(rows) <= set(odd)]
    return listing([name for name, _ in found]) if odd and sum(len(rows) for _, rows in found) == len(odd) else None


def means_of_rows(e: Evidence) -> str | None:
    """Each row weighs the same."""
    count = _together(e)
    rows = [[row] for row, targets in enumerate(e.cut.targets.tolist()) if targets]
    return "" if count is not None and counted.by_targets(count, rows, e.cut) else None
