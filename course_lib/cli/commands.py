"""The commands: what each is for, where it starts, and all that it can be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from course_lib import presets
from course_lib.cli import settings
from course_lib.cli.plan_settings import PLAN
from course_lib.cli.settings import Group, Setting
from course_lib.cli.sweep_settings import SWEEP
from course_lib.cli.train_settings import TRAIN

DEVICE = Setting("device", "h100_sxm_80", "preset", "the GPU that it shall fit on", "01", presets.names("device"))
DOCTOR = (Group("the machine that is asked about", (DEVICE,)),)
JOB = Setting("job", None, "preset", "a job that the course knows, as a beginning", "07", presets.names("job"))
CLUSTER = Group(  # what `sbatch` calls so, with hyphens; what is None is left to the cluster
    "what the job takes of the cluster",
    (
        Setting("nodes", 1, "positive", "machines", "07"),
        Setting("gpus_per_node", 1, "positive", "and as many ranks on each", "07"),
        Setting("cpus_per_task", None, "positive", "of a node: one task there starts all its ranks"),
        Setting("mem", None, "other", "of a node, as 360G"),
        Setting("time", "01:00:00", "other", "after which Slurm ends it"),
        Setting("partition", None, "other", "a name that sinfo shows"),
    ),
)
SLURM = (Group("the job", (JOB,)), CLUSTER)
VERIFY = (
    Group(
        "what is compared",
        (
            Setting("ranks", settings.NEEDED, "positive", "of the parallel side; torchrun has them already", "03"),
            Setting("batches", None, "other", "my_file:batches, if the first file has none", "03"),
            Setting("dtype", "float64", "choice", "the precision of both", "03", ("float64", "float32")),
            Setting("out", None, "other", "a folder for report.json, report.txt and ladder.svg", "03"),
        ),
    ),
)
PREDICT = (
    Group(
        "files",
        (
            Setting("runs", settings.NEEDED, "other", "rows in the schema of published runs, JSON", "08"),
            Setting("out", settings.NEEDED, "other", "a CSV file for the predictions", "08"),
            Setting("calibrate", None, "other", "measured rows of your own cluster, which rescale the others", "08"),
        ),
    ),
)
CALIBRATE = (Group("files", (Setting("out", None, "other", "a folder for constants, errors and layouts", "08"),)),)
PREFLIGHT = (
    Group(
        "what is looked at",
        (
            Setting("ranks", 4, "positive", "of this machine; torchrun and srun have them already", "12"),
            Setting("folder", None, "other", "that all ranks should see, as the one for checkpoints", "12"),
            Setting("cluster", None, "preset", "whose wires busbw is held against", "12", presets.names("cluster")),
        ),
    ),
)
WATCH = (Group("how", (Setting("once", False, "switch", "draw it as it is now, and end", "12", ("true", "false")),)),)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A word after `course`."""

    about: str
    runs: str  # module:function, which takes the words after the command and returns the exit status
    example: str
    own: tuple[Group, ...] = ()
    shared: tuple[Group, ...] = ()  # with `train`
    words: str = "[name=value ...]"  # as usage shows them

    @property
    def groups(self) -> tuple[Group, ...]:
        """All that it can be told."""
        return (*self.own, *self.shared)

    def function(self) -> Callable[[Sequence[str]], int]:
        """What runs; its module is imported now, for torch takes longer to load than a sweep to run."""
        module, _, name = self.runs.partition(":")
        found: Callable[[Sequence[str]], int] = getattr(import_module(f"course_lib.cli.{module}"), name)
        return found


COMMANDS = {
    "tour": Command(
        about="run every technique on real ranks and print one proof table",
        runs="tour:tour_command",
        words="[--ranks N]",
        example="course tour --ranks 4",
    ),
    "train": Command(
        about="train a small decoder, or your own, on one device or on ranks",
        runs="train:train_command",
        shared=TRAIN,
        example="course train dp=2 tp=2 steps=50 out=my_run",
    ),
    "doctor": Command(
        about="say before training what would go wrong, and which settings help",
        runs="doctor:doctor_command",
        own=DOCTOR,
        shared=TRAIN,
        example="course doctor model=llama3_1_8b dp=8 zero_stage=3 batch=8 device=h100_sxm_80",
    ),
    "slurm": Command(
        about="print an sbatch file that trains on a cluster",
        runs="slurm:slurm_command",
        own=SLURM,
        shared=TRAIN,
        example="course slurm job=olmo_7b_fsdp time=04:00:00 > olmo_7b_fsdp.sh",
    ),
    "preflight": Command(
        about="look at the ranks of this machine or of an allocation before anybody trains on them",
        runs="preflight:preflight_command",
        own=PREFLIGHT,
        example="course preflight ranks=4 folder=runs",
    ),
    "watch": Command(
        about="draw a run in the terminal while it trains, and say what asks for a look",
        runs="watch:watch_command",
        own=WATCH,
        words="FOLDER [once=true]",
        example="course watch my_run once=true",
    ),
    "verify": Command(
        about="prove that a trainer of yours computes on ranks what it computes on one device, or say what it does",
        runs="verify:verify_command",
        own=VERIFY,
        words="my_file:reference my_file:parallel [name=value ...]",
        example="course verify my_file:reference my_file:parallel ranks=2",
    ),
    "plan": Command(
        about="search the best way to train a model on a cluster, and say why",
        runs="plan:plan_command",
        own=PLAN,
        example="course plan model=llama3_1_405b cluster=dgx_h100 cluster.n_nodes=2048",
    ),
    "sweep": Command(
        about="compute the memory of every legal way to spread a model over GPUs",
        runs="sweep:sweep",
        own=SWEEP,
        example="course sweep model=llama3_1_405b tp=[4,8] out=table.csv",
    ),
    "predict": Command(
        about="predict step time and memory of published runs, or of your own",
        runs="predict:predict_command",
        own=PREDICT,
        example="course predict runs=my_runs.json out=predicted.csv",
    ),
    "calibrate": Command(
        about="fit the simulator's constants to published runs, and test them on runs that were left out",
        runs="calibrate:calibrate_command",
        own=CALIBRATE,
        example="course calibrate out=my_constants",
    ),
    "completion": Command(
        about="print what lets bash or zsh complete commands, names and choices",
        runs="completion:completion_command",
        words="bash|zsh",
        example='eval "$(course completion bash)"',
    ),
}
