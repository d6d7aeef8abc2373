"""What `sweep` can be told."""

from __future__ import annotations

from course_lib import presets
from course_lib.cli.assumed import ASSUMED
from course_lib.cli.recompute_words import GROUPS
from course_lib.cli.settings import NEEDED, Group, Setting
from course_lib.costs.model.conventions import CONVENTIONS
from course_lib.costs.sweep.explore import EXPLORER, Exploration
from course_lib.costs.sweep.grid import Grid
from course_lib.costs.sweep.job import RECOMPUTE

AXES = Group(
    "what is combined, each with each: one value, or several as [1,2]",
    (
        Setting("gpus", list(Grid.gpus), "wholes", "how many there are", "01"),
        Setting("tp", list(Grid.tp), "wholes", "ranks that share each matrix", "05"),
        Setting("pp", list(Grid.pp), "wholes", "stages", "04"),
        Setting("cp", list(Grid.cp), "wholes", "ranks that share a sequence", "09"),
        Setting("ep", None, "wholes", "ranks that share experts; without it powers of two up to their number", "09"),
        Setting("zero_stages", list(Grid.zero_stages), "wholes", "what copies share", "06"),
        Setting("microbatches", list(Grid.microbatches), "wholes", "sequences of one", "04"),
    ),
)
SWEEP = (
    Group(
        "the model, and the GPU",
        (
            Setting("model", NEEDED, "preset", "a preset, or a folder of Hugging Face", "01", presets.names("model")),
            Setting("device", "h100_sxm_80", "preset", "what it shall fit on", "01", presets.names("device")),
        ),
    ),
    Group(
        "what is counted",
        (
            Setting(
                "convention",
                Exploration.convention,
                "other",
                "bytes of states for each parameter",
                "01",
                (EXPLORER, *CONVENTIONS),
            ),
            Setting("sequence", Exploration.sequence, "whole", "tokens", "01"),
            Setting("global_batch", None, "whole", "sequences of a step; without it the convention's", "01"),
            Setting(
                "recompute", Exploration.recompute, "other", "what layers compute twice", "01", (*RECOMPUTE, GROUPS)
            ),
            Setting("token_imbalance", Exploration.token_imbalance, "other", "the fullest expert's share", "08"),
        ),
    ),
    AXES,
    ASSUMED,
    Group("results", (Setting("out", None, "other", "a CSV file; its configuration lies beside it", "01"),)),
)
