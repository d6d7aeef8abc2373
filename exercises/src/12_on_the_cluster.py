# %% [markdown]
# # Exercises 12: on the cluster
#
# [Lesson 12](../../notebooks/12_on_the_cluster.ipynb) stood before jobs that would not start, hung, were slow or died. Here you write the
# tools that answer, and half of them are files of your own that run without this course. If you have one hour, do 12.3, 12.7 and 12.9.

# %% [markdown]
# ## How to work
#
# Put your code in place of `raise NotImplementedError(...)` and run the cell. Its last line, `check("12.1", ...)`, runs what you wrote in a
# **process of its own**, or on up to four, and compares it with what the course computes. Then it tells you what it has seen. A hang, a
# crash or an endless loop ends after some seconds and costs nothing but that check.
#
# Are you stuck? `hint("12.1")` gives a small hint, and a further one each time you run it. A line under each check has it, behind a `#`.
#
# What your code is given belongs to another part of the program. Leave its numbers as they are, and work on a copy, unless a text says
# that they change.
#
# The folded cells under each exercise carry the points if a course is graded. If you work on your own, skip them: they say the same as the
# check above them.
#
# In a graded copy `GRADE_SEED` is not 0. Where numbers are asked, you start from other ones there, and your cell is run once more with
# yet others. So write formulas, and not what they come to. The first line of such a cell takes its numbers out of what is given.

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
# Setup: run this cell first; it takes some seconds to load what this page needs
import json
import re
from math import sqrt

from course_lib.checks import check, given, hint, save_script

GRADE_SEED = 0  # an instructor's copy may have another number here: other inputs, other given numbers

# %% [markdown]
# ## 12.1
#
# *Write · medium · core · 25 minutes.* **You learn** which of Slurm's variables become which of PyTorch's, and what a node list says.
#
# `srun python train.py` starts your script once for each task, without torchrun. Slurm has told each of them who it is, but under names
# that PyTorch does not know, so `init_process_group` stops and asks for `RANK`. Here is what a task finds, the sixth of a job on three
# nodes:
#
# ```text
# SLURM_JOB_ID=7312645                  SLURM_PROCID=5      SLURM_LOCALID=1
# SLURM_JOB_NODELIST=node[01-02,07]     SLURM_NTASKS=10     SLURM_NODEID=1
# SLURM_TASKS_PER_NODE=4(x2),2          SLURM_JOB_NUM_NODES=3
# ```
#
# The job has node01, node02 and node07. The first two run four tasks each and the last one two, so this is task 1 on node02. Usually
# the tasks of a node have neighbouring numbers. But with `--distribution=cyclic` Slurm deals them out in turn, as one deals cards.

# %% [markdown]
# Write the few lines that a launcher without torchrun needs. They turn the variables of a task into these six, all of them text, so that
# `os.environ.update` takes them:
#
# | variable | what it says |
# | --- | --- |
# | `RANK`, `WORLD_SIZE` | which of all tasks this is, and how many there are |
# | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | which of its node's tasks this is, and how many the node has |
# | `MASTER_ADDR` | the first host of the list, where all of them meet for the **rendezvous** |
# | `MASTER_PORT` | 20000 plus the last four digits of the job's id, so that two jobs on a node do not meet |
#
# **Target:** the six variables of any task, and the list of all hosts, one name for each node. A node list may have several
# names with or without brackets, as in `gpu[09-10,14],login2`. The numbers keep the zeros in front.


# %% nbgrader={"grade": false, "grade_id": "12-1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def from_slurm(variables):
    """Return two things: a dict of PyTorch's six variables, and a list of all hosts.

    variables: a dict of Slurm's own, as a task finds them; all values are text.
    """
    ### BEGIN SOLUTION
    hosts = []
    for name, inner in re.findall(r"([^,\[]+)(?:\[([^\]]+)\])?", variables["SLURM_JOB_NODELIST"]):
        if not inner:
            hosts.append(name)
        for numbers in inner.split(",") if inner else []:
            first, _, last = numbers.partition("-")
            for number in range(int(first), int(last or first) + 1):
                hosts.append(f"{name}{number:0{len(first)}}")
    tasks = []
    for part in variables["SLURM_TASKS_PER_NODE"].split(","):
        number, _, often = part.rstrip(")").partition("(x")
        tasks += [number] * int(often or 1)
    return {
        "RANK": variables["SLURM_PROCID"],
        "WORLD_SIZE": variables["SLURM_NTASKS"],
        "LOCAL_RANK": variables["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": tasks[int(variables["SLURM_NODEID"])],
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": str(20000 + int(variables["SLURM_JOB_ID"]) % 10000),
    }, hosts
    ### END SOLUTION


check("12.1", from_slurm)
# hint("12.1")

# %% [markdown]
# ## 12.2
#
# *Predict · medium · core · 25 minutes.* **You learn** what an acceptance test must show before you believe that a cluster is healthy.
#
# You have been given some nodes, and before you train you run `all_reduce_perf` of nccl-tests on all of their GPUs. It prints two
# bandwidths. The **algorithm bandwidth**, algbw, is the size of the tensor over the time. The **bus bandwidth**, busbw, is what a wire
# has carried in that time, if the ranks stand in a ring. Only busbw can be compared with a data sheet. But first you have to know what it
# should be, so predict it.

# %% nbgrader={"grade": false, "grade_id": "12-2-given", "locked": true, "schema_version": 3, "solution": false, "task": false}
cluster = given("12.2", GRADE_SEED)
print(f"{cluster.nodes} nodes with {cluster.gpus} GPUs and {cluster.cards} network cards each")
print(f"a card carries {cluster.gbit} Gbit/s in each direction")
print(f"the test reduces a tensor of S = {cluster.S:,} bytes on all GPUs")
print(f"an ill card has come up at {cluster.slow_gbit} Gbit/s")
print(f"last night's test of the same size took {cluster.seen_ms} ms")

# %% [markdown]
# NCCL lays one ring over all GPUs for each card of a node. Each ring leaves every node by its own card and gets an equal part of the tensor,
# and all rings run at the same time. NVLink inside a node is faster than all cards together, and the tensor is so large that latency does
# not count. GB are of 10⁹ bytes, as nccl-tests counts them.
#
# | name | number to give |
# | --- | --- |
# | `card_gb` | GB/s of one card |
# | `factor` | busbw over algbw, for an all-reduce on all GPUs |
# | `busbw_gb`, `algbw_gb` | what the test prints if all is well |
# | `time_ms` | milliseconds of that all-reduce |
# | `one_card_gb` | busbw if NCCL finds only one card of each node, because a variable names just that one |
# | `slow_gb` | busbw if all cards are used, and one card of one node is the ill one |
# | `pair_gb` | algbw of a test with one GPU on each of two nodes, whose only ring uses the ill card |
# | `seen_gb` | busbw of last night's test |
# | `seen_cards` | how many cards of a node have carried it, if all that did were healthy |

# %% nbgrader={"grade": false, "grade_id": "12-2", "locked": false, "schema_version": 3, "solution": true, "task": false}
nodes, gpus, cards, gbit, S, slow_gbit, seen_ms = cluster
### BEGIN SOLUTION
n = nodes * gpus
card_gb = gbit / 8
factor = 2 * (n - 1) / n
busbw_gb = cards * card_gb
algbw_gb = busbw_gb / factor
time_ms = S / 1e6 / algbw_gb
one_card_gb = card_gb
slow_gb = cards * slow_gbit / 8
pair_gb = slow_gbit / 8
seen_gb = S / 1e6 / seen_ms * factor
seen_cards = seen_gb / card_gb
### END SOLUTION
bandwidths = ...
check("12.2", bandwidths, seed=GRADE_SEED)
# hint("12.2")

# %% [markdown]
# ## 12.3
#
# *Write · hard · core · 40 minutes.* **You learn** to find, among many ranks that wait, the one for which they wait.
#
# Four GPUs stand still. The **flight recorder** of `torch.distributed` has noted each rank's last collectives, and a thread of yours has
# written what `_dump_fr_trace()` returns into a file. The files are on your desk. Each is a pickle of a dict with `entries`, the
# oldest first, and this is one entry:
#
# ```text
# {"process_group": ("1", "mesh_tp"),    the group's name, and a description
#  "collective_seq_id": 14,              which of this group's collectives it is
#  "profiling_name": "gloo:all_reduce",  the operation
#  "input_sizes": [[1024]],
#  "retired": False,                     whether it has come back
#  "state": "scheduled",                 over gloo it is never anything else
#  "frames": [{"filename": "/.../site-packages/torch/...", "line": 3245, "name": "all_reduce"}, ...], ...}
# ```
#
# `frames` is the stack, the innermost call first: some lines of torch, then your own files. A rank's recorder is a ring buffer and keeps
# the last entries only, not the same number on each rank.

# %% [markdown]
# Write the tool that reads them. A call that all members of its group have made alike is no problem, even if it has not come back
# yet. Otherwise one rank strays, in one of three ways:
#
# | how | what has happened | the operation | the place |
# | --- | --- | --- | --- |
# | `"missing"` | others wait in a call that this rank has not made, and it waits nowhere itself | that of a call in which others wait for it | where this rank made its last call, in whichever group |
# | `"operation"` | it has called another operation than most of its group | what it has called itself | where it has done so |
# | `"size"` | the same operation, with another size than most have | what it has called itself | where it has done so |
#
# With several groups most ranks that wait are victims. If rank 3 does not come to its tp group, rank 2 waits for it there, so rank 2 does
# not come to its dp group either, and rank 0 waits for rank 2. The stray is rank 3.
#
# **Target:** `None` if no rank strays, else four things: how, the rank, the operation as `profiling_name` has it, and the place as
# `"file:line"`, of the first frame that is not in `site-packages`.


# %% nbgrader={"grade": false, "grade_id": "12-3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def find_stray(dumps, groups):
    """Return None, or how a rank strays, which one, its operation and a place as "file:line".

    dumps: a list of what the ranks have recorded, as dicts, rank 0 first.
    groups: for each group's name a list of its ranks.
    """

    ### BEGIN SOLUTION
    def place(entry):
        frame = next(one for one in entry["frames"] if "site-packages" not in one["filename"])
        return f"{frame['filename']}:{frame['line']}"

    waiting = [any(not entry["retired"] for entry in dump["entries"]) for dump in dumps]
    for name, members in groups.items():
        calls = {
            rank: {
                entry["collective_seq_id"]: entry
                for entry in dumps[rank]["entries"]
                if entry["process_group"][0] == name
            }
            for rank in members
        }
        for number in {n for rank in members for n in calls[rank] if not calls[rank][n]["retired"]}:
            made = {rank: calls[rank][number] for rank in members if number in calls[rank]}
            for rank in members:
                if rank not in made and not waiting[rank]:
                    missed = next(iter(made.values()))["profiling_name"]
                    return "missing", rank, missed, place(dumps[rank]["entries"][-1])
            for how, field in (("operation", "profiling_name"), ("size", "input_sizes")):
                values = [entry[field] for entry in made.values()]
                usual = max(values, key=values.count)
                for rank, entry in made.items():
                    if len(made) == len(members) and entry[field] != usual:
                        return how, rank, entry["profiling_name"], place(entry)
    return None
    ### END SOLUTION


check("12.3", find_stray)
# hint("12.3")
