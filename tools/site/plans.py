"""The planner on a page: NumPy is not to be had for a browser's Python, so a few cases are computed beforehand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from html import escape
from io import StringIO
from typing import NamedTuple

from course_lib.cli.plan import plan_command
from course_lib.cli.plan_config import read_plan
from course_lib.planner.policy_search import Found, search
from course_lib.planner.reasons import Ranked, ranked, why_slower
from course_lib.planner.space import RULES
from course_lib.viz.planning.policy_table import rows_of
from course_lib.viz.planning.step_timeline import plot_step_timeline
from tools.site.elements import table
from tools.site.pictures import with_files
from tools.site.places import SOURCES

_SHOWN = 3  # as many as the command prints
_SECONDS = re.compile(r"(?<= layouts looked at) in [^;\n]+")  # of this machine, so that two builds are the same bytes


class Case(NamedTuple):
    """A model on so many nodes of a cluster."""

    model: str
    cluster: str
    nodes: int

    @property
    def overrides(self) -> list[str]:
        """What the command is told; to play the best hundred through as well would take seconds for each case."""
        return [f"model={self.model}", f"cluster={self.cluster}", f"cluster.n_nodes={self.nodes}", "retime=0"]

    @property
    def gpus(self) -> str:
        """As an address carries it."""
        return f"{self.nodes}_{self.cluster}"


MODELS = ("olmo_1b", "llama3_1_8b", "llama3_1_70b")
MACHINES = (("kempner_h100", 1), ("kempner_a100", 4), *(("dgx_h100", nodes) for nodes in (1, 2, 4, 8)))
CASES = tuple(Case(model, *machine) for model in MODELS for machine in MACHINES)
FIRST = Case("llama3_1_8b", "dgx_h100", 2)  # what is seen before anything is chosen
_PAGE = """# Which layout is fastest?

A layout says how many ways the batch, the matrices and the layers are split, and what copies share. `plan` looks at
every layout that these GPUs allow, leaves out those that do not fit, and times the rest by the formulas of
[lesson 08](/lessons/08_three_d_and_planner.ipynb). Choose a model and GPUs.

{element}

These {count} cases were computed when the page was built. The command below each of them computes the same on your
machine, and [its settings](/more/commands.md) take any other model, cluster or batch. The table's times follow from a
closed formula. The picture plays the instructions through one by one, so its step may differ in the last digit. Without
`retime=0` the command plays the best hundred through as well, which takes seconds.
"""


def write_plans() -> None:
    """Write the page."""
    found = {case: searched(case) for case in CASES}
    models = {case.model: one.job.model.name for case, one in found.items()}
    machines = {case.gpus: machine_of(one) for case, one in found.items()}
    lines = [
        '<section class="explorer plan" aria-label="Cases of the planner">',
        f'<form><div class="controls">{_choice("model", "model", models, FIRST.model)}',
        f"{_choice('gpus', 'GPUs', machines, FIRST.gpus)}</div></form>",
        '<p class="said" aria-live="polite"></p>',
        *(_section(case, one) for case, one in found.items()),
        "<noscript><style>.plan .case { display: block !important; }</style>",
        "<p>To choose needs JavaScript. All cases stand above.</p></noscript>",
        '<script type="module" src="../_static/plan.js"></script></section>',
    ]
    page = SOURCES / "explorers/plan.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(_PAGE.format(element="\n".join(lines), count=len(CASES)), encoding="utf-8")


def searched(case: Case) -> Found:
    """What the command finds."""
    config = read_plan(case.overrides)
    return search(config.job, config.space)


def printed(overrides: Sequence[str]) -> str:
    """What the command prints, without the seconds of its search."""
    text = StringIO()
    with redirect_stdout(text):
        plan_command(overrides)
    return _SECONDS.sub("", text.getvalue().rstrip())


def machine_of(found: Found) -> str:
    """As a list to choose from says it."""
    cluster = found.job.cluster
    return f"{cluster.n_gpus} × {cluster.device.name} ({cluster.name})"


def _choice(name: str, label: str, options: Mapping[str, str], first: str) -> str:
    chosen = {value: " selected" if value == first else "" for value in options}
    inside = "".join(f'<option value="{one}"{chosen[one]}>{escape(words)}</option>' for one, words in options.items())
    head = f'<div class="control"><label for="plan-{name}">{label}</label>'
    return f'{head}<select name="{name}" id="plan-{name}">{inside}</select></div>'


def _section(case: Case, found: Found) -> str:
    """What is shown of one case, without an empty line, at which Markdown would begin anew."""
    title = f"{found.job.model.name} on {machine_of(found)}"
    hidden = "" if case == FIRST else " hidden"
    opened = " open" if found.nearest else ""
    parts = [
        f'<section class="case" data-case="{case.model} {case.gpus}" aria-label="{escape(title)}"{hidden}>',
        *(_nothing(found) if found.nearest else _best(found)),
        f"<p>On your machine:</p><pre><code>course plan {' '.join(case.overrides)}</code></pre>",
        f"<details{opened}><summary>What it prints</summary>",
        f'<pre tabindex="0">{escape(printed(case.overrides))}</pre></details></section>',
    ]
    return "".join(parts).replace("\n", "&#10;")


def _nothing(found: Found) -> list[str]:
    """Which layout comes nearest, and why it is none; how much it lacks is printed."""
    assert found.nearest is not None
    broken = "; ".join(RULES[rule] for rule in found.nearest.broken)
    nearest = f"The one that comes nearest is <code>{found.nearest.in_words}</code>, but {broken}."
    return [f"<p>None of {found.n_tried:,} layouts is possible. {nearest}</p>"]


def _best(found: Found) -> list[str]:
    """The fastest layouts as a table, why the others lose to the first, and one step of the first."""
    best = ranked(found, _SHOWN)
    rows = rows_of(best)
    words = [list(rows[0]), *([*row.values()] for row in rows)]
    picture = with_files(plot_step_timeline(found, title="One step of the fastest, played through").html, "../")
    return [
        f"<p>{len(found):,} of {found.n_tried:,} layouts are possible. The fastest:</p>{table(words)}",
        f"<ul>{''.join(_reason(number, one, best[0]) for number, one in enumerate(best[1:], start=2))}</ul>",
        f'<div class="cell_output">{picture}</div>',
    ]


def _reason(number: int, one: Ranked, first: Ranked) -> str:
    return f"<li>No. {number} is {escape(why_slower(one, first))}.</li>"
