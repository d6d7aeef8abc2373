# %% [markdown]
# # 00 · Start here: four processes in one notebook
#
# | | |
# | --- | --- |
# | **Time** | about 30 minutes |
# | **You need** | Python, and to have seen a PyTorch tensor |
# | **You will prove** | an average computed by four processes equals the one computed by a single process; a wrong average can hide behind a perfect loss curve |
# | **Back ends** | checked here on CPU over gloo, PyTorch's message library for CPUs; with enough GPUs the same cells use one per process over NCCL, NVIDIA's |

# %% [markdown]
# ## Why one process is not enough
#
# Training an 8-billion-parameter Llama takes 128 GB<!-- =16 * model_parameters(LLAMA_3_1_8B) / GB --> at 16 bytes<!-- =16 --> per parameter: 2 for the
# weight, 2 for its gradient, 12 for the optimizer. An H100 with 80 GB<!-- =80 --> does not hold that, before a single activation.
#
# So many processes must share the work, and **agree** on the result. This course is about how they agree, what it costs,
# and how to notice when they don't.

# %%
# %load_ext course_lib

# %% [markdown]
# ## Ranks
#
# A **rank** is one process in a group that works together. Ranks are numbered from 0. The size of the group is the
# **world size**.
#
# Your notebook is not one of them. It sends each cell that begins with `%%ranks` to the ranks and collects what they say.

# %%
from course_lib import viz

viz.plot_ranks(4)

# %% [markdown]
# The first line of a cell decides where it runs. `%%ranks 4` means: on four ranks, all at once.

# %%
# %%ranks 4
print(f"I am rank {rank} of {world_size}")

# %% [markdown]
# Four processes ran the *same* cell. They printed in any order; you always read them in rank order.
#
# A few names are already there on each rank: `rank`, `world_size`, `device`, `torch`, and `dist`, which is short for
# `torch.distributed`.

# %% [markdown]
# ## Every rank has its own memory
#
# The cell below is the same text for everyone. **Before you run it**, say what rank 3 will show.

# %%
# %%ranks 4
x = 100 - rank
x

# %% [markdown]
# One name, four different values. There is no shared variable in this course, ever. What one rank knows and another
# does not must be *sent*.
#
# The ranks stay alive between cells, so `x` is still there.

# %%
# %%ranks 4
x * 2

# %% [markdown]
# And the notebook? It has never heard of `x`.

# %%
"x" in globals()

# %% [markdown]
# ## Between the notebook and the ranks
#
# `--push` copies notebook variables to every rank. `--pull` brings a variable back as a list, one entry per rank.

# %%
scale = 3

# %%
# %%ranks 4 --push scale --pull scaled
scaled = scale * rank

# %%
scaled

# %% [markdown]
# `--only` runs a cell on some of the ranks. The others rest.

# %%
# %%ranks 4 --only 0,2
x

# %% [markdown]
# ## The first collective
#
# A **collective** is a call that all ranks make together. The most important one in training is **all-reduce**: each
# rank puts in a tensor, and every rank gets the sum.
#
# In the picture one colour is one rank. A chunk with all colours is a sum over all of them.

# %%
viz.who_holds_what("all_reduce", 4)

# %% [markdown]
# ### Predict, then run
#
# Rank 0 holds 1, rank 1 holds 2, rank 2 holds 3, rank 3 holds 4. All ranks call all-reduce. What does rank 0 hold
# afterwards? The run comes first, but its result stays hidden until you have guessed.
#
# Put your number in place of `None` and run the cell. You get 10 points if it is right, 5 within a factor of two, and 2 within a factor of ten.

# %%
# %%ranks 4 --pull after
gradient = torch.tensor([rank + 1.0])
dist.all_reduce(gradient)
after = gradient.item()

# %%
from course_lib.checks import predict, score

predict("rank 0 after all-reduce of 1, 2, 3, 4", guess=None, answer=after[0])

# %% [markdown]
# All-reduce **sums**; it does not average. If you said 2.5, you took the average: it is what training *wants*, and what
# people often assume the library did.
#
# Dividing by the world size is your job. Remember this: near the end of this notebook it turns into a bug that no loss
# curve shows.

# %%
# %%ranks 4 --pull averaged
gradient = torch.tensor([rank + 1.0])
dist.all_reduce(gradient)
averaged = gradient / world_size

# %% [markdown]
# ### Prove it against one device
#
# One process can compute the same average alone. Nothing in this course counts as right until it equals that.

# %%
import torch

alone = torch.tensor([1.0, 2.0, 3.0, 4.0]).mean(dim=0, keepdim=True)
[torch.equal(mine, alone) for mine in averaged]

# %% [markdown]
# ## The same, built by hand
#
# `dist.all_reduce` is a black box. What happens inside? Only **sends** and **receives** between two ranks.
#
# The simplest way has two halves. First everybody sends to rank 0, which adds: that half is called **reduce**. Then rank 0
# sends the sum to everybody: that is a **broadcast**. Below is the code that really runs in this course. In it `port` sends,
# receives and lends room for what arrives, and `combine` adds. The number of ranks is p, and M is the bytes of the tensor.

# %%
from course_lib.comm import naive

display(viz.show_source(naive.reduce), viz.show_source(naive.broadcast))

# %%
# %%ranks 4
from course_lib import comm

gradient = torch.tensor([rank + 1.0])
comm.all_reduce(gradient, algorithm="naive")

# %% [markdown]
# ## The ledger: who sent what to whom
#
# Our own collectives write down each message: sender, receiver, bytes, start and end. That record is the **ledger**.
#
# Each rank held one float32 number, 4 bytes<!-- =4 -->. How many bytes did **rank 0** send?

# %%
from course_lib.ranks import ledger

predict("bytes that rank 0 sent", guess=None, answer=ledger().bytes_sent(0), unit="bytes")
viz.plot_bytes_matrix(ledger())

# %% [markdown]
# Look at row 0: rank 0 sent the sum to each of the three others. The others sent one message each.
#
# So everything goes through rank 0. With 4 ranks that is bearable, but with 1000 ranks everyone would wait for one. Module 02
# removes that bottleneck.

# %% [markdown]
# ### When did it happen?
#
# Here is the same ledger, drawn over time. This is *your* run, a moment ago. Run the `comm.all_reduce` cell again, then this one,
# and it looks different. Four numbers need hardly any time to travel. What you see as long bars are processes that wait for each
# other, or for one of your cores.

# %% varies="times differ on every machine and in every run"
viz.plot_timeline(ledger(), title="All-reduce through rank 0, as it just ran")

# %% [markdown]
# ## When one rank fails
#
# Rank 1 below makes a mistake; the other three wait for it in all-reduce. PyTorch by itself would let them wait for half an
# hour, its time limit with gloo, without a word.

# %% tags=["raises-exception"]
# %%ranks 4
if rank == 1:
    gradient = gradient / None
dist.all_reduce(gradient)

# %% [markdown]
# Read the last line. It names the rank that failed, your own line, and what the others were doing.
#
# Three ranks were stuck inside a call that could never end. So all four were started again, and their variables are
# gone.

# %% [markdown]
# ## A hang on purpose
#
# The most puzzling failure has no error at all: the ranks disagree on which call comes next. Rank 2 below waits for a message that
# nobody sends. The rest wait for rank 2.
#
# `--timeout 3` ends the wait after three seconds.

# %% tags=["raises-exception"]
# %%ranks 4 --timeout 3
from course_lib import comm

gradient = torch.tensor([rank + 1.0])
if rank == 2:
    dist.recv(gradient, src=1)
else:
    comm.all_reduce(gradient)

# %% [markdown]
# This one line is a diagnosis. It says *which rank* waits in *which call* on *which line*. Compare the two places and
# you see the bug: rank 2 took the other branch.
#
# (`#1` says that it was the first collective of the cell.) Your ranks are back already, ready for the next cell.

# %% [markdown]
# ## A mismatch
#
# The third way to fail: all ranks make the same call, with tensors that do not fit together. **Predict** what happens
# when rank 3 brings five numbers and the others four.

# %% tags=["raises-exception"]
# %%ranks 4
from course_lib import comm

comm.all_reduce(torch.ones(5 if rank == 3 else 4))

# %% [markdown]
# You get no garbage and no hang, because our collectives compare notes before a byte of data moves. Read the message. After the
# place come four parts: what was attempted, with which values, which rule they break, and the way out. Every complaint about
# an argument has them in this course.

# %% [markdown]
# ## The failure that nobody notices
#
# Errors are the friendly kind. Now comes the other kind. Four ranks train the same tiny model, each on its quarter of the data.
# `right` averages the gradients. `wrong` forgets to divide by the world size.

# %%
import torch.distributed as dist


def four_rank_training(divide_by, steps=40):
    torch.manual_seed(0)
    data = torch.randn(64, 8)
    target = data @ torch.randn(8, 1)
    rows = data.tensor_split(dist.get_world_size())[dist.get_rank()]
    goal = target.tensor_split(dist.get_world_size())[dist.get_rank()]
    w = torch.zeros(8, 1, requires_grad=True)
    adam, losses = torch.optim.Adam([w], lr=0.1), []
    for _ in range(steps):
        losses.append(((data @ w - target) ** 2).mean().item())
        (w.grad,) = torch.autograd.grad(((rows @ w - goal) ** 2).mean(), [w])
        dist.all_reduce(w.grad)
        w.grad /= divide_by
        adam.step()
    return losses, w.grad.norm().item()


# %% [markdown]
# `run_ranks` is the twin of `%%ranks` for functions: it calls `four_rank_training(...)` on four ranks and returns four results.
# We look at rank 0's.

# %%
from course_lib.ranks import run_ranks

ranks = 4
right, right_norm = run_ranks(four_rank_training, ranks, 4)[0]  # divided by 4
wrong, wrong_norm = run_ranks(four_rank_training, ranks, 1)[0]  # not divided

# %%
for step in range(0, 40, 8):
    print(f"step {step:2}   loss, right: {right[step]:.3f}   loss, wrong: {wrong[step]:.3f}")

# %% [markdown]
# The losses are the same, digit for digit. Which run has the bug? From this table nobody can tell. The reason is the optimizer:
# Adam divides each gradient by its own typical size, and so a constant factor cancels.

# %%
predict("gradient norm, wrong over right", guess=None, answer=lambda: round(wrong_norm / right_norm, 2))

# %% [markdown]
# The gradient is 4 times too large, and the loss does not know. With plain SGD the two runs differ after one step. With
# Adam and gradient clipping they drift apart slowly. With Adam alone you may never see it.
#
# Frameworks have shipped this: [here](https://github.com/pytorch/pytorch/issues/162338) an average that was a sum, wrong by the world size. So
# this course never trusts a loss curve. It compares gradients with one device, using plain SGD, which hides nothing.

# %% [markdown]
# ## How to use this course
#
# 1. **Predict.** Say a number before you run the cell.
# 2. **Run.** It is real: real processes, real messages.
# 3. **Explain.** If the number surprised you, find out why before you go on.
#
# Your score so far:

# %%
score()

# %% [markdown]
# ## On a GPU node and on a cluster
#
# - *More GPUs than ranks:* change nothing. Each rank takes one GPU, `device` says which, and the back end is NCCL.
# - *Fewer GPUs than ranks:* the ranks run on the CPU and say so. `%%ranks 4 --device cuda` makes them share.
# - *Outside a notebook:* put the function in a file and start it with torchrun. It runs unchanged.
#
# ```bash
# torchrun --nproc-per-node 4 -m course_lib.ranks my_file:my_function
# ```

# %% [markdown]
# ## Takeaways
#
# - A rank is a process with its own memory. What it does not have must be sent.
# - All-reduce sums. Dividing is your job.
# - A hang has a diagnosis: which rank, which call, which line.
# - A loss curve can look perfect over wrong gradients.
#
# **Next:** module 02, *collectives* (01 is about memory and can wait), opens the black box: eight primitives, the ring, and what each byte costs. Exercises start
# there.
#
# References: [PyTorch distributed overview](https://docs.pytorch.org/docs/stable/distributed.html).

# %% [markdown]
# ## Quiz
#
# <details><summary>1. Four ranks run <code>x = rank</code>. Then rank 0 runs <code>x = 7</code>. What is <code>x</code> on rank 1?</summary>
# Still 1. Each rank has its own memory.
# </details>
#
# <details><summary>2. One rank leaves a loop one step early. What do you see?</summary>
# Nothing at first: the others wait in their next collective. Then the time limit, and a report of who waits where.
# </details>
#
# <details><summary>3. Loss with 4 ranks equals the loss with 1. Are the gradients right?</summary>
# Not proven. Compare the gradients themselves.
# </details>
