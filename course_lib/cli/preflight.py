"""`python -m course_lib preflight`: is this machine, or this allocation, fit to train on? A line for each thing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from course_lib.cli import preflight_judges as judges
from course_lib.cli import settings
from course_lib.cli.commands import PREFLIGHT
from course_lib.cli.compose import parse_overrides, path_given, refuse
from course_lib.cli.preflight_facts import Alone, Together, look_alone, look_together
from course_lib.cli.preflight_judges import Finding
from course_lib.gauges.acceptance import sweep_table
from course_lib.hardware import ClusterSpec, load_cluster
from course_lib.ranks import RankError, run_ranks, switch

COMMAND = "preflight"
_MOST_RANKS = 64  # of one machine
_LIMIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What is looked at besides what always is."""

    ranks: int
    folder: Path | None
    cluster: ClusterSpec | None


def preflight_command(overrides: Sequence[str]) -> int:
    """Look at ranks of this machine, or as one that torchrun or srun has started; 0 if nothing is wrong, else 1.

    Raises: ValueError for an unknown name or an illegal value.
    """
    asked = _read(overrides)
    if "RANK" in os.environ or int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        from course_lib.cli.preflight_started import preflight_started

        preflight_started(asked)
    return _here(asked)


def _read(overrides: Sequence[str]) -> Preflight:
    parsed = parse_overrides(COMMAND, "a preflight", overrides, keys=settings.names(PREFLIGHT), groups=("cluster",))
    values = settings.defaults(PREFLIGHT) | {"cluster": None} | {one.key_or_group: one.value() for one in parsed}
    settings.check_kinds(COMMAND, PREFLIGHT, values)
    if values["ranks"] > _MOST_RANKS:
        way_out = "start it on each node by torchrun or srun for more"
        refuse(COMMAND, f"ranks={values['ranks']}", f"a machine has at most {_MOST_RANKS} here", way_out)
    return Preflight(
        ranks=values["ranks"],
        folder=None if values["folder"] is None else path_given(COMMAND, "folder", values["folder"]),
        cluster=None if values["cluster"] is None else load_cluster(str(values["cluster"])),
    )


def _here(asked: Preflight) -> int:
    """On ranks of this machine."""
    switch.device_kind()  # refuses what is no device
    mine = [judges.interfaces([look_alone(0, asked.ranks, "cpu", asked.folder)])]
    if not can_meet(mine):
        return say(mine)
    try:
        found = run_ranks(partial(_both, asked), asked.ranks, timeout=_LIMIT_S)
    except RankError as error:
        return say([*mine, Finding("meeting", "wrong", " ".join(str(error).split()))])
    return report(asked, [one for one, _ in found], [one for _, one in found])


def _both(asked: Preflight) -> tuple[Alone, Together]:
    import torch
    import torch.distributed as dist

    kind = "cuda" if torch.empty(1).is_cuda else "cpu"
    return look_alone(dist.get_rank(), asked.ranks, kind, asked.folder), look_together(asked.folder)


def judged_alone(ranks: Sequence[Alone]) -> list[Finding]:
    """What can be said before the ranks have met."""
    return [judge(ranks) for judge in judges.ALONE]


def can_meet(findings: Sequence[Finding]) -> bool:
    """Whether a group can be made: with a wrong interface its ranks would wait for each other in vain."""
    return all(one.verdict != "wrong" for one in findings if one.what == "interfaces")


def report(asked: Preflight, ranks: Sequence[Alone], found: Sequence[Together]) -> int:
    """All findings, below the table of the sweep."""
    findings = judged_alone(ranks)
    findings += [judges.ports(ranks, found), judges.clocks(ranks, found[0].clocks)]
    if asked.folder is not None:
        findings.append(judges.folder(ranks, found, str(asked.folder)))
    findings += [judges.wires(ranks, found, asked.cluster), *judges.links(ranks, found[0].links, asked.cluster)]
    print(sweep_table(found[0].rows), end="\n\n")
    return say(findings)


def say(findings: Sequence[Finding]) -> int:
    """A line each, and one about all of them; return the exit status."""
    print(*(one.line for one in findings), sep="\n")
    counts: Mapping[str, int] = {kind: sum(one.verdict == kind for one in findings) for kind in ("wrong", "look")}
    if not can_meet(findings):
        print("the rest was not looked at, for ranks cannot meet like this")
    said = [f"{count} to {kind} at" if kind == "look" else f"{count} wrong" for kind, count in counts.items() if count]
    print(f"of {len(findings)} findings {', '.join(said) or 'nothing is wrong'}")
    return 1 if counts["wrong"] else 0
