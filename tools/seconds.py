"""The table at the end of `make check`: CPU seconds of each step and of each module, beside the budget.

CPU seconds, since a machine that does other things as well makes every step longer and none dearer.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tools.cpu_of_tests import CPU_S
from tools.modules import MODULES, SHARED, module_of

FIRST_MODULES = 9  # 00 to 08, which share one budget
FIRST_BUDGET_S = 1_750
FURTHER_BUDGET_S = 120
DECK_LINE = re.compile(r"^(\d\d)_\w+: .* in ([\d.]+) s$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of one step; `shares` are weights that say how its seconds belong to modules."""

    name: str
    passed: bool
    cpu_s: float
    wall_s: float
    beside: bool = False
    shares: dict[str, float] = field(default_factory=dict)

    def by_module(self) -> dict[str, float]:
        """Return the step's CPU seconds of each module; what no test has used is shared as the rest is.

        >>> Result(name="ranks", passed=True, cpu_s=6.0, wall_s=4.0, shares={"02": 1.0, "shared": 2.0}).by_module()
        {'02': 2.0, 'shared': 4.0}
        """
        total = sum(self.shares.values())
        if not total:
            return {SHARED: self.cpu_s}
        return {module: self.cpu_s * share / total for module, share in self.shares.items()}


def of_modules(report: Path, output: str) -> dict[str, float]:
    """Return each module's seconds, from pytest's report or from what the slides' build has printed.

    They are CPU seconds where the report has them (`tools.cpu_of_tests`), else the time that passed.
    """
    used, passed = Counter[str](), Counter[str]()
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            module = module_of(case.get("file") or case.get("classname", ""), case.get("name", ""))
            used[module] += sum(float(one.get("value", 0)) for one in case.iter("property") if one.get("name") == CPU_S)
            passed[module] += float(case.get("time", 0))
    for module, taken in DECK_LINE.findall(output):
        passed[module] += float(taken)
    return dict(used if sum(used.values()) else passed)


def table(results: list[Result], wall_s: float) -> str:
    """Return one line per step, with a column per module, then the sums and the budget."""
    columns = [*MODULES, SHARED]
    lines = ["", f"{'CPU seconds':14}" + "".join(f"{name:>7}" for name in columns)]
    sums: Counter[str] = Counter()
    for result in results:
        taken = result.by_module()
        sums.update(taken)
        mark = "ok    " if result.passed else "FAILED"
        cells = "".join(f"{taken[name]:7.1f}" if name in taken else f"{'':7}" for name in columns)
        passed = f"{result.wall_s:.0f} s{' (beside)' if result.beside else ''}"
        lines.append(f"{mark}{result.cpu_s:7.1f} {cells}  {result.name}, {passed}")
    lines.append(f"{'':6}{sum(sums.values()):7.1f} " + "".join(f"{sums[name]:7.1f}" for name in columns) + "  together")
    budget = FIRST_BUDGET_S + max(len(MODULES) - FIRST_MODULES, 0) * FURTHER_BUDGET_S
    lines.append(
        f"in all {sum(sums.values()):,.0f} CPU seconds, of a budget of {budget:,} ({FIRST_BUDGET_S:,} for modules"
        f" 00 to {FIRST_MODULES - 1:02}, {FURTHER_BUDGET_S} for each further one), in {wall_s / 60:.1f} min"
    )
    return "\n".join(lines)
