"""What `plan` can be told."""

from __future__ import annotations

from course_lib import presets
from course_lib.cli.assumed import ASSUMED
from course_lib.cli.recompute_words import GROUPS
from course_lib.cli.settings import NEEDED, Group, Setting
from course_lib.costs.model.conventions import CONVENTIONS
from course_lib.costs.sweep.job import Job
from course_lib.planner.space import REDUCE, SHARDS, Space
from course_lib.sim.policies import RECOMPUTE, SCHEDULES

TOKENS, SEQUENCE = 2**22, 8192  # of a step, and of a sequence, where nothing says them
_STAGES = ("0", "1", "2", "3")
AXES = Group(
    "what is combined: one value, or several as [1,2]; without a degree all that divide",
    (
        Setting("tp", Space.tp, "wholes", "ranks that share each matrix", "05"),
        Setting("pp", Space.pp, "wholes", "stages", "04"),
        Setting("cp", Space.cp, "wholes", "ranks that share a sequence", "09"),
        Setting("ep", Space.ep, "wholes", "ranks that share experts", "09"),
        Setting("zero_stage", list(Space.zero_stage), "wholes", "what copies share", "06", _STAGES),
        Setting("shards", list(Space.shards), "other", "whom ZeRO cuts among; domain: HSDP", "06", SHARDS),
        Setting("reduce", list(Space.reduce), "other", "when ZeRO-2 does; microbatch: after each", "06", REDUCE),
        Setting("micro_batch", list(Space.micro_batch), "wholes", "sequences of one", "04"),
        Setting("recompute", list(Space.recompute), "other", "what layers compute twice", "01", (*RECOMPUTE, GROUPS)),
        Setting("schedule", list(Space.schedule), "other", "the order of a pipeline's work", "04", SCHEDULES),
        Setting("stages_per_rank", list(Space.stages_per_rank), "wholes", "for interleaved", "04"),
    ),
)
PLAN = (
    Group(
        "the model, and the cluster",
        (
            Setting("model", NEEDED, "preset", "a preset, or a folder of Hugging Face", "01", presets.names("model")),
            Setting("cluster", NEEDED, "preset", "cluster.n_nodes=2048 changes one", "08", presets.names("cluster")),
        ),
    ),
    Group(
        "a step",
        (
            Setting("batch", None, "whole", f"sequences; without it as many as have {TOKENS:,} tokens", "03"),
            Setting("convention", Job.convention, "choice", "bytes of states a parameter", "01", tuple(CONVENTIONS)),
            Setting("sequence", None, "whole", f"tokens; without it {SEQUENCE}, or what the model was made for", "01"),
        ),
    ),
    AXES,
    ASSUMED,
    Group(
        "the search, and its results",
        (
            Setting("retime", 100, "whole", "how many of the fastest are timed again on their instructions", "08"),
            Setting("out", None, "other", "a JSON file", "08"),
            Setting("train", None, "other", "a folder: the winner's small likeness is trained there", "08"),
        ),
    ),
)
