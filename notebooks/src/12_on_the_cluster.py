# %% [markdown]
# # 12 · On the cluster: sixteen GPUs stand still
#
# Your OLMo 7B trained well on the laptop, for a few steps of a small likeness. Now it has four nodes of four GPUs, and the whole night. The log says `step 6`. Five minutes later it still says `step 6`. There is no error, and `nvidia-smi` shows every GPU at work, because a GPU that waits for others in NCCL looks busy.
#
# Sixteen GPUs stand still, and nobody says why. What do you look at, and in which order?
#
# Run the folded cell below first, and again whenever you restart the kernel: it loads what the lesson uses.

# %% folded=true
# Setup: run this cell first; it takes some seconds to load what this page needs
# %load_ext course_lib
from pathlib import Path

import torch

from course_lib import comm, gauges, predict, run_ranks, score, viz
from course_lib.costs import GiB

# %%
viz.plot_first_questions()

# %% [markdown]
# You can print this page. A job that is not well *hangs*, or is *slow*, or computes something *wrong*, or is *dead*. Each column has its questions in order, cheap ones first, and behind each question the tool that answers it. You will use the first two columns here and the other two in [lesson 12b](12b_through_the_night.ipynb), each on a job that really has the illness.
#
# You will be able to
# - read a job file line by line, and say who starts whom.
# - name a wrong network interface before a job waits for it.
# - find the line of code for which a hanging job waits.
# - measure whether a cluster's wires are what they should be, and what of the communication is exposed.
# - say which rank is last, and whether it waits for its data.
#
# *Fifty minutes; the exercises come on top. No GPU, no Slurm and no root is needed.*
#
# <details><summary>Before you start</summary>You need data parallelism from lesson 03 and FSDP from 06. Everything on this page ran on CPUs over gloo. What needs Slurm is run by <code>make test-slurm</code> on nodes that it makes itself; NCCL ran on one GPU, for the last paragraph alone; what else is said of it was only read.</details>

# %% [markdown]
# ## Who starts whom?
#
# A job can hang before its first line. To know where, you have to know who starts whom. So we read the file that starts it. Its third line has the command that made it. So many steps fit into a night even at the slow end of what `plan` says.

# %%
from course_lib.cli.slurm import slurm_command

job = ["job=olmo_7b_fsdp", "nodes=4", "dp=16"]
assert slurm_command([*job, "time=08:00:00", "steps=14000", "checkpoint_every=2000"]) == 0

# %% [markdown]
# `sbatch` puts the file into Slurm's queue. When four nodes are free, Slurm runs it **once**, on the first of them. The lines with `#SBATCH` say what you ask Slurm for: how many nodes, for how long, and one *task* for each node.
#
# `srun` then starts that task on **all** nodes. The task is no training yet, it is `torchrun`. Each `torchrun` must find the other three, and for that they meet at one address, the first node and a port that is made from the job's number. This meeting is the **rendezvous**. Only when all four have come does each start a process for each of its GPUs, and tells it in environment variables who it is.
#
# | line | what for |
# | --- | --- |
# | `--gpus-per-node`, `--nproc-per-node` | the GPUs of each node, and a rank for each of them |
# | `first_node`, `port` | where all torchruns meet; two jobs on one node have two ports |
# | `--mem`, `--partition` | main memory of each node, and which of the cluster's queues |
# | `--cpus-per-task`, twice | cores for loaders and threads; since Slurm 22.05 `srun` no longer takes it over by itself |
# | `set -euo pipefail` | the first line that fails ends the file, instead of training on with nonsense |
# | `--signal`, `--max-restarts`, `--signals-to-handle`, `--requeue` | to go on after an end: lesson 12b |
# | `--shutdown-timeout=100` | so many seconds torchrun gives its ranks to write a checkpoint |
# | `status=$?`, and the block at the end | the status of the run, and whether time was all that was missing |
# | `--open-mode=append`, `--output=%x-%j.out` | one log, with the job's name and number, also after a restart |
# | `--kill-on-bad-exit=1` | if one node's task fails, Slurm ends the others |
# | `--rdzv-id`, `--rdzv-backend=c10d` | a name for this meeting, and PyTorch's own way to hold it |
# | all after `-m course_lib train` | the run itself: model, FSDP of lesson 06, rate, checkpoints |
#
# **Predict.** The nodes count from 0, and so do the GPUs of a node. Which `RANK` has GPU 1 of node 2, if the nodes keep their order?

# %%
predict(
    "RANK of GPU 1 on node 2, of four nodes with four GPUs",
    guess=None,
    answer=2 * 4 + 1,
    think="how many ranks the nodes before it have",
)
viz.plot_who_starts(nodes=4, gpus_per_node=4, rank=9)

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Two nodes stand before it with four ranks each, so it is rank 9. Within its node it is 1, its `LOCAL_RANK`, and that is the number of the GPU to take. A script that takes `RANK` instead asks node 2 for its GPU 9, and there is none.
#
# Follow the variables down the tree. A task sees only Slurm's, its ranks see both. If the ranks of your script need `SLURM_PROCID`, then somebody has left torchrun out, and `srun` starts the ranks itself. Kempner's OLMo jobs do so; then the script has to make `RANK` from `SLURM_PROCID` before `init_process_group` asks for it.
#
# One trap: torchrun numbers the nodes by itself, sorted by their names as words are. So `node10` stands before `node2`, whatever Slurm says. Look for rank 0's log where it is, and not where you expect it.
#
# </details>
#
# Now a job that has printed nothing since "Initializing" stands most often at one of three places. Is it in the queue? `squeue` says so. Has a `torchrun` not come to the rendezvous? Then the others wait for it, because `--nnodes` is a promise. Or are all ranks there, and cannot talk? Then the **interface** is often wrong, the network card on which a library listens. (And if it is none of them, look whether Python is still importing, from a slow shared disk.)
#
# The second place is the quietest. Here a `torchrun` was promised two nodes, and the other never comes. `py-spy` reads the stack of a Python process from outside.

# %%
import os
import re
import subprocess
import sys
import time
from importlib.metadata import files

from course_lib.ranks.member import free_port

py_spy = next(file.locate() for file in files("py-spy") if file.stem == "py-spy")


def stack_of(pid):
    """What py-spy sees, or why it may not look."""
    plain = {**os.environ, "CLICOLOR_FORCE": "0"}
    looked = subprocess.run([py_spy, "dump", "--pid", str(pid)], env=plain, capture_output=True, text=True)
    return looked.stdout or looked.stderr


torchrun = [sys.executable, "-m", "torch.distributed.run"]
of_two = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}"]
waits = subprocess.Popen(
    [*torchrun, *of_two, "scripts/02_collectives.py"], stdout=-1, stderr=subprocess.STDOUT, text=True
)
for _ in range(20):  # until it has imported PyTorch
    time.sleep(0.5)
    if "next_rendezvous" in (stack := stack_of(waits.pid)) or waits.poll() is not None:
        break
print("py-spy:  ", re.findall(r"\w+\.next_rendezvous", stack) or stack)
waits.terminate()
print("its log: ", repr(waits.communicate()[0]))

# %% [markdown]
# Its log is empty, and so it stays for ten minutes. But it is in `next_rendezvous`: *this* torchrun has come, so look at the other nodes. If it is in `_create_tcp_store`, the *first* node has not come, or cannot be reached; then it speaks after a minute, and soon gives up. And once its ranks run, its main thread is in `_invoke_run` and no deeper: ask the ranks.
#
# A wrong interface, the third place, is mostly a line that somebody has copied from another cluster. Here is what it looks like, first in PyTorch's own words, and then in those of `preflight`, which can stand in a job file before the run: the same `srun … torchrun` line with `--max-restarts=0` and `-m course_lib preflight`, and without `|| status=$?`, so that a finding ends the job.

# %% varies="a machine's own interfaces"
import torch.distributed as dist

from course_lib.cli.preflight import preflight_command

os.environ["GLOO_SOCKET_IFNAME"] = "ib7"  # a card that this machine does not have
try:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
except RuntimeError as error:
    print(f"PyTorch:  {error}\n")
assert preflight_command(["ranks=2"]) == 1
del os.environ["GLOO_SOCKET_IFNAME"]

# %% [markdown]
# `preflight` says which rank, which variable, and which names this host does have. It looks at `NCCL_SOCKET_IFNAME` too, by NCCL's rules.
#
# Worse than a name that is not there is one that is. `lo` leads from a machine to itself, and every node has it, so nobody protests: each rank gives the others the address 127.0.0.1, at which they find only themselves. In our trial on two nodes one rank reported `Connection refused`, and the others waited until their time was over. There `preflight` says that `lo` leads to no other host, and starts nothing. (A third kind works, and is slow: *Going deeper* has it.)
#
# > **To keep.** Slurm starts tasks, torchrun starts ranks. When a job prints nothing, ask which of the two has not come.

# %% [markdown]
# ## It hangs
#
# Our patient is [`scripts/12_stands_still.py`](scripts/12_stands_still.py), a training of 23 batches with everything left out but its messages. It needs PyTorch, and for the debug server `tabulate` and `requests`, which do not come along with it. It prepares three things of which you will see the use. One of its imports begins with an underscore: PyTorch may move it in another release.

# %%
viz.show_source(Path("scripts/12_stands_still.py"))

# %% [markdown]
# Read `main`. Each rank takes every fourth batch, adds up its loss with the others after each step, evaluates once at the end, and saves. There is a bug in it, and it is a common one. If you see it, keep it to yourself for five minutes: nobody sees it in a script of two thousand lines.
#
# We start it as one does on a cluster. With `--redirects 3` and `--log-dir` each rank writes into files of its own, so that sixteen ranks do not talk at once. The cell waits until no step was made for three seconds.

# %% varies="the process's numbers"
from tempfile import mkdtemp

logs, port = Path(mkdtemp()), free_port()
traces = logs / "traces"
traces.mkdir()
on_four = [*torchrun, "--standalone", "--nproc-per-node=4"]
separate = ["--redirects=3", f"--log-dir={logs}"]
job = subprocess.Popen(
    [*on_four, *separate, "scripts/12_stands_still.py", str(traces), str(port)], stderr=subprocess.DEVNULL
)


def log_of(rank, kind="stdout"):
    return next(logs.glob(f"*/attempt_0/{rank}/{kind}.log")).read_text()


while len([*traces.glob("trace_*")]) < 4 and job.poll() is None:
    time.sleep(0.2)
print(log_of(0))

# %% [markdown]
# Six steps, and then nothing. Look at the losses once more before you go on. Something is odd about the last one, and we come back to it.
#
# Nothing will come of waiting but an end: each group has a time limit, here two minutes, and then a hang looks like a death. torchrun then prints a table with the rank whose patience ended first, and that need not be the one at fault. So look while it hangs.
#
# **Where does each rank wait?** Three ways to ask, from the most to the least preparation. The script has registered Python's own `faulthandler`, so a signal lets a rank write where it is. It has started PyTorch's **debug server**, by which one address, on the host of rank 0, answers for all ranks while they hang. (It asks for no password: only in a network that you trust.) And `py-spy`, which you know by now, needs no preparation at all, but the right to look into the process: as root, or as its owner where the system allows it.


# %% varies="a learner's folder"
import signal
from urllib.request import urlopen


def own_lines(text):
    """Where the script's main thread is: function and line, the innermost first."""
    found = re.findall(
        r"12_stands_still.py\W+line (\d+) in (\w+)|(\w+) \(.*12_stands_still.py:(\d+)\)", text
    )
    return [
        f"{b or c}, line {a or d}"
        for a, b, c, d in found
        if "watch" not in (b, c) and "main" not in (b, c)
    ]


pids = [int(log_of(rank).split()[4]) for rank in range(4)]
for pid in pids:
    os.kill(pid, signal.SIGUSR2)
time.sleep(1)
print("by their signal: ", [own_lines(log_of(rank, "stderr"))[:1] for rank in range(4)])

page = urlopen(f"http://localhost:{port}/stacks").read().decode()
print("debug server:    ", [own_lines(part)[:1] for part in page.split("Rank ")[1:5]])

seen = [stack_of(pid) for pid in pids]
print("py-spy:          ", [own_lines(stack)[:1] or stack for stack in seen])

# %% [markdown]
# All three agree. Ranks 0, 1 and 2 wait in `evaluate`, and rank 3 waits in `save`. So rank 3 is *ahead*. It has evaluated already, alone. But how can an all-reduce end for one rank, when the other three have not ended theirs?
#
# A stack cannot say. It knows where a rank is now, and nothing of how it came there. For that somebody must have kept a diary.
#
# PyTorch keeps one. The **flight recorder** holds the last two thousand collectives of each rank, with their numbers, sizes and lines of code. Over gloo it is always on. Our script wrote it to a file, one for each rank, when no step was made. `flight_calls` takes from each entry what we need.

# %%
import pickle

from course_lib.gauges import flight_calls

dumps = [pickle.loads((traces / f"trace_{rank}").read_bytes()) for rank in range(4)]
calls = [flight_calls(dump) for dump in dumps]
for call in calls[3]:
    print(call)

# %% [markdown]
# That is the diary of rank 3: six all-reduces that are done, and a barrier that is not. Each rank numbers its calls, and call 5 of one rank meets call 5 of the others. Within one group of ranks nothing else decides who meets whom, and this is the key to all that follows.
#
# **Predict.** In which call did the ranks part first? Not where they wait, but where one did something else than the others.

# %%
predict(
    "number of the first call in which not all ranks do the same",
    guess=None,
    answer=gauges.first_difference(calls).number,
    think="how many batches each rank has, and what each calls next",
)
viz.plot_calls(calls, title="The last calls of four ranks that stand still")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Look along the columns. Up to call 5 all four stand in the same line. In call 6 all four call all-reduce, with the same size, and it is *done*. But the others called it from the loop, and rank 3 from `evaluate`.
#
# It had one batch less than they: 23 batches on four ranks are 6, 6, 6 and 5.
#
# So rank 3's score was added to the others' losses. Nothing hung and nothing was said, because the calls fit. That is why step 6 had an odd loss: it was no loss. In call 7 they do not fit any more, an all-reduce here and a barrier there, and everybody waits.
#
# The place of the hang is one call *after* the place of the bug. In a real training it may be a thousand calls after it.
#
# </details>
#
# > **To keep.** A stack says where a rank waits. The flight recorder says where the ranks parted, and that comes first.

# %% [markdown]
# PyTorch has a reader for these files too, `torchfrtrace`. Over gloo it needs a mend in version 2.13: gloo's dumps name no group, at which the reader stops with a `KeyError`. `write_for_torchfrtrace` writes the names. What does the reader say of our case, and whom does it accuse?

# %% varies="a learner's folder"
import shlex

gauges.write_for_torchfrtrace(traces, logs / "mended")
torchfrtrace = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
told = subprocess.getoutput(shlex.join([*torchfrtrace, "-p", "trace_", str(logs / "mended")]))
job.terminate()
job.wait()
print(re.search("error msg.*", told)[0].replace(", ", ",\n    "))

# %% [markdown]
# (`python -m course_lib.gauges.flight FOLDER` says in a terminal what our picture shows. If your script has written no files, give it `HOST:PORT` of the debug server. No lines of code are in that answer, so of our job it names call 7, and not 6.) The reader finds call 7, and that a barrier met all-reduces. But it takes one rank's call for the right one and calls the three others the culprits. And of call 6 it says nothing, because there the operations agree, and it does not compare lines.
#
# On a cluster of a thousand ranks it names the odd call sooner than you could. But it names a difference, not a cause.
#
# One tool is left, for when you can start the job again. With `TORCH_DISTRIBUTED_DEBUG=DETAIL` all ranks compare each call *before* they make it. **Before you run the cell**, say at which step it will stop.

# %% varies="the order in which ranks speak"
strict = subprocess.run(
    [*on_four, "scripts/12_stands_still.py", str(logs)],
    env={**os.environ, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    capture_output=True,
    text=True,
)
print(strict.stdout.splitlines()[-1])
own = r"\[rank(\d)\]: RuntimeError: Detected mismatch.*?Rank \1 is.*?SequenceNumber=(\d+).*?OpType=(\w+)"
for who, number, operation in sorted(set(re.findall(own, strict.stderr))):
    print(f"rank {who} is about to call {operation}, SequenceNumber={number}, counted from 0")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# It made step 6, and stopped before call 7, at once, and not after minutes of waiting. (DETAIL numbers this call 6, since it counts from 0.) Each rank prints two halves, and here you see what ranks say of *themselves*. What they say of the other is not to be trusted: the comparison is a collective as well, and may have met another one. Our call 6 fits in its operation and its size, and DETAIL compares no lines either. Besides it makes every call slower, so you start a short job with it, and not the long one. And a script with DDP needs a change first, or it dies of DETAIL itself: *Going deeper* has it.
#
# </details>
#
# | tool | before the hang you must have | it says | it cannot know |
# | --- | --- | --- | --- |
# | `py-spy dump --pid` | nothing, but the right to look | where a rank waits | how it came there |
# | `faulthandler.register` | one line | the same, in each rank's log | how it came there |
# | `start_debug_server` | one line, a free port, two packages | the same for all ranks, at one address | how they came there; over gloo its own page of the recorder fails, `gauges.flight` reads what lies behind it |
# | flight recorder | a line that writes it (NCCL: its watchdog) | all calls, in order, with their lines | why a rank called |
# | `torchfrtrace` | the files of all ranks | the first call that does not fit | who is right |
# | `DETAIL` | a new start, and time | the call that does not fit, at once | calls that fit by chance, and what the other rank did |
#
# The mend is that all ranks make equally many steps. `DistributedSampler` does so, by reading some rows twice, and 03.11 lets you write it without that.
#
# **Your turn.** Copy the script, mend it there, and start the copy in a terminal: `torchrun --standalone --nproc-per-node 4 mended.py .` It has to end by itself, and no step may have a loss that does not fit.
#
# <details><summary>One way to do it</summary>Leave out the batches that do not go round: <code>range(BATCHES - BATCHES % ranks)[rank::ranks]</code>. Then all ranks make five steps. Whoever may not leave rows out lets a rank without a batch add 0, and divides by the number of those that had one.</details>

# %% [markdown]
# ## It is slow
#
# The job runs again, but a step takes twice as long as `plan` said. Is it the cluster, or is it you?
#
# Ask the cluster first, because that takes a minute: an **acceptance test**. All ranks add up tensors of growing size, and print how fast. NVIDIA's `nccl-tests` prints two speeds. The **algorithm bandwidth**, `algbw`, is the tensor's bytes over the seconds. But a ring sends almost two tensors over each wire, $2(p-1)/p$ of one. So the bus bandwidth, `busbw`, is that factor times `algbw`. It is what a link of the ring has really carried, and between nodes a link is all cards of a node together. So you can hold it against a data sheet, whatever the number of ranks. An `algbw` of 20 GB/s<!-- =20 --> on 16 ranks is a `busbw` of 37.5 GB/s<!-- =gauges.busbw(20, 16) -->.
#
# `preflight` makes this test, and looks at the rest of the machine besides. We tell it that we expect a DGX H100, which this machine is not, so that you see a finding.

# %% varies="measured times, and what a machine has"
status = preflight_command(["ranks=2", "cluster=dgx_h100"])  # 1 if something is wrong: it stops a job file

# %% [markdown]
# Read a column of the table downwards. Small tensors are slow by any measure, because their time is latency. `busbw` climbs with the size. On a cluster it levels off, at what the wire can do. Here the ranks share the processors of one machine, so you see gloo at work, and no wire.
#
# Then read the first word of each finding. `ok` needs no reader, `look` may have a reason that you know, and `wrong` has none. The last line is the verdict on the wires: how fast, over how many hosts, and which share that is of the preset's link. (On several nodes two lines more time each link alone, inside nodes and between them, and name a slow one.) Below half of it you should look, and below a tenth it is wrong. A `#wrong` that is not 0 is worse than all of these, since whole numbers have been added up to something else.
#
# What should the plateau be? Lesson 02 timed and priced 4 GiB<!-- =4 --> over 32 B200s, in nodes with eight cards each:

# %%
from course_lib.sim.collectives import priced

row = next(row for row in priced() if (row.gpu, row.ranks, row.nbytes) == ("B200", 32, 4 * GiB))
for name, seconds in {
    "measured": row.measured_s,
    "a ring through all eight cards": row.by("ring"),
    "first in nodes, then between": row.by("hierarchical"),
    "a ring through one card": row.one_card_s,
}.items():
    bus = gauges.busbw(row.nbytes / seconds, row.ranks) / 1e9
    print(f"{name:31} {1e3 * seconds:4.0f} ms, busbw {bus:4.0f} GB/s")

# %% [markdown]
# Eight cards of 50 GB/s<!-- =wires(load_cluster("dgx_b200")).card.bandwidth_bytes_per_s / GB --> each would carry 400, and what was measured comes near. So if your busbw is an eighth of what it should be, count the cards that NCCL uses: its log at `NCCL_DEBUG=INFO` lists them.
#
# A wrong interface that *works* shows in the same way: *Going deeper* has one.
#
# > **To keep.** Test the wires before you doubt your code: a minute's sweep, and busbw against the preset.

# %% [markdown]
# ### What is exposed?
#
# The wires are good, and the step is still slow. Then it may be that messages travel while nobody computes. Such communication is exposed. Lesson 03 hid it behind backward, and now you look whether it is hidden, with PyTorch's own **profiler**. It writes a trace: a list of spans, each with a name, a beginning and an end.
#
# One thing is pretended. A GPU computes while its processor has time for messages, and your processors have no such time. So in each layer's backward a pause of 10 ms<!-- =10 --> stands for the GPU's work, under the name of a product.


# %% varies="measured times"
import json


def traced_step(bucket_cap_mb):
    """The events of two steps of DDP on this rank; Perfetto would open the file."""
    import torch.distributed as dist
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, record_function

    class OnGpu(torch.autograd.Function):
        """Takes time in backward, and none of the processor's."""

        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            with record_function("aten::mm, as on a GPU"):
                time.sleep(0.01)
            return gradient

    class OnGpuLinear(nn.Linear):
        def forward(self, x):
            return OnGpu.apply(super().forward(x))

    layers = nn.Sequential(*(OnGpuLinear(1024, 1024) for _ in range(6)))
    model = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=bucket_cap_mb)
    x = torch.randn(8, 1024)
    with comm.settings(guard=False):  # the course's own check of each call sends messages, too
        for _ in range(2):  # the first step is never like the others
            model(x).square().mean().backward()
        dist.barrier()
        with profile(activities=[ProfilerActivity.CPU]) as trace:
            for _ in range(2):
                model(x).square().mean().backward()
    trace.export_chrome_trace(file := f"{mkdtemp()}/trace.json")
    return json.loads(Path(file).read_text())["traceEvents"]


runs = {f"buckets of {size} MB": run_ranks(traced_step, 2, size)[0] for size in (1000, 1)}
viz.plot_trace(runs, title="Two steps of DDP, as the profiler saw rank 0")

# %% [markdown]
# In the upper run all gradients fit into one bucket, which is full when backward has ended. So everything that it sends is exposed. In the lower run a bucket leaves as soon as a layer's gradients are there, and lies beneath the computing of the layers before it. What is left is mostly the bucket of the first layer, behind which nothing is computed any more.
#
# Look at the lengths, not only at the shares. Where messages need the processors that compute, as with real products on this machine, the share may fall and the step become longer. So let the trace say *what* is exposed, and the clock whether a change has helped.
#
# Take all spans in which a message is under way, and cut away those in which this rank computes: that is all that `exposed` does, which *Going deeper* shows.
#
# ### Who is last?
#
# Sixteen ranks wait for the slowest one, the straggler. Which is it? One looks at the seconds of a step, which every log has. Below, four ranks work and then add up; one of them is slow on purpose.
#
# **Predict.** Each rank measures its whole step, from its beginning to the end of the all-reduce. Three work 20 ms<!-- =20 -->, one 50. How long does a *fast* rank say that its step took?

# %%
# %%ranks 4 --pull own,whole
import time

own, whole = [], []
for _ in range(8):
    begin = time.perf_counter()
    time.sleep(0.05 if rank == 2 else 0.02)  # this rank's own work
    own.append(time.perf_counter() - begin)
    dist.all_reduce(torch.ones(1000))
    whole.append(time.perf_counter() - begin)

# %% varies="measured times"
predict(
    "ms that a fast rank's step takes",
    guess=None,
    answer=50,
    unit="ms",
    tolerance=0.1,
    think="what it does when its own work is done",
)
for rank in range(4):
    mine, step = 1e3 * min(own[rank]), 1e3 * min(whole[rank][1:])
    print(f"rank {rank}: own work {mine:.0f} ms, whole step {step:.0f} ms")
for slow in gauges.stragglers([*zip(*own, strict=True)]):
    print(f"rank {slow.rank} takes {slow.ratio:.1f} x the usual, in {slow.share:.0%} of the steps")

# %% [markdown]
# <details><summary>After your guess: why</summary>
#
# Fifty, as long as the slow rank's, because the all-reduce lets it wait. Whoever reads step times sees sixteen ranks that are equally slow. Only the time of a rank's own work tells them apart, from the beginning of the step to its first collective.
#
# </details>
#
# A rank may be last because its GPU is hot, because its rows are longer, or because it waits for its data; *Going deeper* lets the profiler show that. `train` on CPUs writes into each tenth line, for each rank, the seconds in which it computed or waited for data (`own_s`). On a GPU it is empty; *Going deeper* says what to do there.
#
# > **To keep.** In a synchronous training a step takes equally long on all ranks. Measure own work, or the straggler stays invisible.

# %% [markdown]
# ## The file behind this lesson
#
# [`course_lib/gauges/recorded_calls.py`](../course_lib/gauges/recorded_calls.py), about 130 lines, reads the flight recorder. You compared the calls of four ranks by eye. It adds what happens when the recorder has forgotten the oldest calls, when a rank has none, and when two against two disagree.
#
# ## What still hurts
#
# Now the job runs, and it is fast. At ten past three in the morning the system of one node kills a rank, since its memory is full. You are asleep. What has to be in the job, so that it goes on without you? That is [lesson 12b](12b_through_the_night.ipynb).

# %%
score()

# %% [markdown]
# ## Questions
#
# **Next:** 12.1 to 12.4, 12.8 and 12.9 of the [exercises](../exercises/release/12_on_the_cluster.ipynb), and then [lesson 12b](12b_through_the_night.ipynb), through the night.
#
# <details><summary>1. All ranks wait in the same line of the same all-reduce, with the same number. What do you suspect?</summary>
# All have come, so it is no matter of order. Compare the sizes and the group first: a rank that brings another size can stop all. If they agree, the messages do not arrive: look at the interface, the cards and the switch. <code>preflight</code> says whether the interface leads to the other hosts, and how fast each link is.
# </details>
#
# <details><summary>2. One rank of sixteen is not in the flight recorder's files at all. Where do you look next?</summary>
# At its process: is it there? If it is dead, its log and torchrun's table say why. If it lives, its stack does: perhaps it never reached <code>init_process_group</code>.
# </details>
#
# <details><summary>3. busbw of 16 ranks is a quarter of one card's bandwidth, on nodes with four cards. And within one node it is as it should be. What now?</summary>
# The wires between nodes carry a fraction of one card. So the messages may go over another interface, the one for logins. <code>NCCL_DEBUG=INFO</code> says which one was taken.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## What "exposed" is
#
# Take all spans in which a message is under way, and cut away those in which this rank computes. What is left, nothing hides. On a GPU the same parser reads the kernels instead, where NCCL's begin with `nccl`. Over gloo you see only DDP's overlap: FSDP on CPUs has no streams, so its gathers are always exposed, and a trace from a laptop says nothing about them.

# %%
from course_lib.gauges.exposed import exposed, sorted_out

display(viz.show_source(exposed), viz.show_source(sorted_out))

# %% [markdown]
# ## A hang in two kinds of parallelism
#
# Four ranks train with tensor parallelism of two and data parallelism of two. So each rank is in two groups, and numbers its calls in each of them. Then rank 3 stops. Rank 2 is its partner in tensor parallelism and rank 1 in data parallelism. Rank 0 shares neither with it. **Before you run the cell**, say who waits, and for whom.

# %%
spread = logs / "spread"
spread.mkdir()
subprocess.run([sys.executable, "scripts/12_spreads.py", str(spread)], check=True)
read = [sys.executable, "-m", "course_lib.gauges.flight"]
print(subprocess.getoutput(shlex.join([*read, str(spread / "a later step")])))

# %% [markdown]
# All three wait. Rank 0 waits for rank 2, which has done nothing wrong, and in a large job nearly all stacks look like theirs. So follow the waiting to its end, a rank that no recorded collective holds up, and look at that one's stack first.
#
# There need not be an end. Here ranks 0 and 3 begin with tensor parallelism, but ranks 1 and 2 with data parallelism:

# %%
print(subprocess.getoutput(shlex.join([*read, str(spread / "circle")])))

# %% [markdown]
# Each waits for the next, and no stack is wrong by itself. Only the order is: ranks that share groups must call them in the same order. (A rank that leaves one call out makes a circle, too.)
#
# Your own job writes such files as our patient above does, or NCCL's watchdog writes them, on each node's own disk if you do not name a shared folder. Before you trust them, do three things. Count them, since a rank that has written none may be dead. Dump twice, some seconds apart, since a job that runs looks for a moment as if it stood still. And remember what is not recorded. Gloo records no sends, no receives, no `monitored_barrier` and no `new_group`, so a rank that no *recorded* collective holds up may wait in one of these. NCCL records sends and receives. It also lists each group's ranks, of which gloo's dumps know only those that have called.
#
# ## A wrong interface that works
#
# `make test-slurm` lets two hosts on one machine meet, with two networks between them: one for data, and one for logins, to which the kernel gives 200 Mbit/s<!-- =200 -->. Over each of them `preflight` finds nothing wrong, since everybody answers. Look at its last line, of long messages:
#
# ```text
# GLOO_SOCKET_IFNAME=data0     ok     between     busbw of 1 link 0.654 GB/s at 16 MiB
# GLOO_SOCKET_IFNAME=login0    ok     between     busbw of 1 link 0.0237 GB/s at 16 MiB
# ```
#
# Those 200 Mbit/s<!-- =200 --> are 0.025 GB/s<!-- =200e6 / 8 / 1e9 -->: `busbw` is the wire. A job over it would train correctly, and its gradients would travel as much more slowly. (The fast network is pretended, so how much is this machine's.) So give `preflight` the preset of your cluster, or nobody has a number to hold against it.
#
# ## Does it wait for its data?
#
# The profiler shows it by itself: each `next` of a `DataLoader` is a span in the trace, with the loader's name. Here a disk takes 10 ms<!-- =10 --> for each row, first read by the rank itself, and then by two workers, which read ahead while it computes.


# %% varies="measured times"
def waited(workers):
    """Milliseconds that ten steps spent in the loader and in their products, as the profiler saw them."""
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.data import DataLoader, Dataset

    class SlowDisk(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, row):
            time.sleep(0.01)
            return row

    context = "fork" if workers else None  # a class of this page is known to a forked worker alone
    loader = DataLoader(SlowDisk(), batch_size=4, num_workers=workers, multiprocessing_context=context)
    weights = torch.randn(1024, 1024)
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        for _ in loader:
            weights @ weights  # stands in for a step
    spent = {event.key: event.cpu_time_total / 1e3 for event in trace.key_averages()}
    in_loader = sum(ms for name, ms in spent.items() if name.startswith("enumerate(DataLoader)"))
    return in_loader, spent["aten::mm"]


for workers in (0, 2):
    [(in_loader, computed)] = run_ranks(waited, 1, workers)
    print(f"{workers} workers: {in_loader:4.0f} ms in the loader, {computed:4.0f} ms in the products")

# %% [markdown]
# Without workers every row is waited for, and the wait is as long as the disk is slow. With two, the loader has read on while the rank computed, and what is left is mostly the first batch, for which nobody could read ahead, and a last call in which the workers are told to go.
#
# ## The same on a cluster: py-spy over srun
#
# While a job hangs you may start a second step beside it, on the same nodes: `--overlap`. `scontrol listpids` names the job's processes on each node, and `py-spy` looks at those that have a `RANK`. `make test-slurm` runs just these lines, on two nodes; write as many as your job has.
#
# ```bash
# srun --jobid=$JOB --overlap --nodes=2 --ntasks-per-node=1 --label bash -c '
#   for pid in $(scontrol listpids $SLURM_JOB_ID.0 | awk "NR > 1 && \$1 > 0 {print \$1}"); do
#     tr "\0" "\n" < /proc/$pid/environ | grep -q ^RANK= && py-spy dump --pid $pid
#   done'
# ```
#
# Do not look for processes by their name: other people's have the same.
#
# ## DETAIL and DDP
#
# In PyTorch 2.13 DDP over gloo does not survive `DETAIL`: torchrun's table says exit code −11 before the first step. The comparison is a wrapper around each group, and DDP stumbles over it. So give DDP a group of its own that was made without it. All calls of yours are still compared, and those of DDP are not.
#
# ```python
# level = dist.get_debug_level()
# dist.set_debug_level(dist.DebugLevel.OFF)
# own = dist.new_group()
# dist.set_debug_level(level)
# model = DistributedDataParallel(model, process_group=own)
# ```
#
# ## Before the stacks: is every rank there?
#
# The page asks that before it asks for stacks, because it takes a second. A rank that has aborted may leave the others waiting. A stopped one, with `T` in the column STAT, holds up the debug server for a minute, and `py-spy` reads it with `--nonblocking` alone; `kill -CONT PID` lets it go on. And a worker of the data loader has its rank's name and its rank's `RANK`, but a rank as its parent, the PPID.
#
# ## It hangs when all is done
#
# The last step is printed, and the job does not end. `py-spy` finds a rank at the line that *called* `main`, idle, in no function of PyTorch. A variable `model` dies when its function returns. If the group was left before that, then in version 2.13 a model under DDP is the last to hold the group. Its end waits for a thread of gloo while it keeps Python's lock, which that thread may need. One script in a thousand meets it; [`torch_ddp_outlives_its_group`](../wild/RESULTS.md) makes groups until it happens. So delete the model before you leave the group, or leave the group outside of the function that made the model.
#
# ## Logs that others have posted
#
# Three threads in which the answer stands. Decide what you would look at before you unfold it.
#
# **[NVIDIA/nccl 1105](https://github.com/NVIDIA/nccl/issues/1105).** Two nodes are to train, hang for a while, and end. torchrun says only `Socket Timeout`, in its own exit barrier. With `NCCL_DEBUG=INFO` one node prints that it has bootstrapped on the interface `enp67s0` with the address 192.168.1.8, that it found no InfiniBand device and takes sockets, and then that its connection to 192.168.1.9 failed: no route to host. Where do you look?
#
# <details><summary>What the lines say</summary>The ranks had met, since each knows the other's address. So the rendezvous is well, and torchrun's message is a victim's. The addresses are those of the interface that NCCL chose by itself, and between the two hosts this network does not lead, because of a route or a firewall. Dial that very address from that host. <code>preflight</code> dials the next host by its name, which may lead through another network, so its <code>ok</code> proves nothing here.</details>
#
# **[NVIDIA/nccl 286](https://github.com/NVIDIA/nccl/issues/286).** One computer has the interfaces `eno1` and `lo`, the other `eth0` and `lo`. Only `lo` is on both. What do you write into `NCCL_SOCKET_IFNAME`?
#
# <details><summary>What NCCL's author answers</summary>Not <code>lo</code>, which leads to no other host. Either both names, <code>eno1,eth0</code>, of which each host takes the one that it has. Or each its own, in a file <code>/etc/nccl.conf</code>. Or nothing at all: by itself NCCL takes the first interface that is neither <code>lo</code> nor one of docker's. (In that variable <code>ib</code> means all that begins so, <code>=ib0</code> that one alone, and <code>^lo</code> all that does not begin so.)</details>
#
# **[NVIDIA/nccl 1911](https://github.com/NVIDIA/nccl/issues/1911).** A job of 32 ranks stands still, and NCCL's own service for this, RAS, reports a mismatch: 30 ranks have launched all-gathers up to number 640, and two up to number 641. It then names the two, ranks 12 and 13, with their node. Do you look at these two?
#
# <details><summary>Who waits for whom</summary>Not first. The two are ahead: they wait in 641 for the thirty, which have not come, so ask the thirty for their stacks. RAS names the smaller group, and the thread asks NVIDIA to name the one that is behind. But who is ahead is not innocent yet. Our rank 3 was ahead as well, because it had left a batch out. Only the calls tell.</details>
#
# In [NVIDIA/nccl 296](https://github.com/NVIDIA/nccl/issues/296) the counters of four ranks stand side by side, as in our picture, with the shell commands that made them out of a log.
#
# ## On GPUs, over NCCL
#
# For stragglers `train`'s `own_s` is empty, since Python runs ahead of the GPU and its clock says nothing. Compare the ranks' traces: who is last waits least for the others, so the straggler is the rank whose NCCL kernels are the *shortest*, whatever holds it up. A stack says less, too: a collective, except a barrier, is only put into the GPU's queue, and Python stands later, where it first needs a number, at an `.item()` for example. So the recorder is worth the more. NCCL's watchdog writes the flight recorder when a call has timed out, if `TORCH_NCCL_DUMP_ON_TIMEOUT` lets it, into files whose name begins as `TORCH_FR_DUMP_TEMP_FILE` says. `TORCH_FR_BUFFER_SIZE` says how many calls it holds. Its entries have a `state` that tells calls that were scheduled from those that have started, which gloo's do not. On one H200 (29 November 2026, `make gpu`) a call behind a GPU that was busy for a minute was `scheduled`, the three before it `completed`, and our reader named its line. And in the profiler FSDP's gathers lie on a stream of their own, so you can see whether they are hidden; that has not run for this page.
#
# References: [nccl-tests, on bus bandwidth](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md); [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html).
