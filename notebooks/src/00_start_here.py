# %% [markdown]
# # 00 · Start here: which of these two is wrong?
#
# Four processes train a tiny model together. They do it twice, with the same data, the same start and the same number of steps. Yet in one of the two trainings every gradient is wrong. The picture below shows the losses of both. Leave the code folded, because it comes back at the end, when you can read every line of it.

# %% folded=true
# %load_ext course_lib
import torch
import torch.distributed as dist

from course_lib import viz
from course_lib.checks import predict, score
from course_lib.comm import naive
from course_lib.ranks import ledger, run_ranks


def train_on_four(divide_by, steps=40):
    torch.manual_seed(0)
    data, solution = torch.randn(64, 8), torch.randn(8, 1)
    mine = data.tensor_split(dist.get_world_size())[dist.get_rank()]  # this process's rows
    w = torch.zeros(8, 1, requires_grad=True)
    adam, losses, norms = torch.optim.Adam([w], lr=0.1), [], []
    for _ in range(steps):
        losses.append(((data @ w - data @ solution) ** 2).mean().item())
        (w.grad,) = torch.autograd.grad(((mine @ w - mine @ solution) ** 2).mean(), [w])
        dist.all_reduce(w.grad)
        w.grad /= divide_by
        norms.append(w.grad.norm().item())
        adam.step()
    return losses, norms


runs = {"training A": run_ranks(train_on_four, 4, 4)[0], "training B": run_ranks(train_on_four, 4, 1)[0]}
losses = {name: losses for name, (losses, _) in runs.items()}
norms = {name: norms for name, (_, norms) in runs.items()}

# %%
viz.plot_loss_curves(losses, title="Two trainings on four processes; one has wrong gradients")

# %% [markdown]
# Look for a difference between the two lines. B's thin line lies in the middle of A's broad one, from the first step to the last. The colours do not help, since neither means "wrong". So from these losses nobody can say which training is the wrong one.
#
# Such a mistake happens to careful people too. In September 2025 a user reported that one of PyTorch's own averages, over gloo, the library that we use here, [was a sum](https://github.com/pytorch/pytorch/issues/162338). No error message had told anybody.

# %% [markdown]
# In forty-five minutes you will be able to
# - say which of the two is wrong, and why the loss cannot know.
# - run your own code on several processes, from a notebook.
# - find out why such processes hang, from a single line.
#
# *Forty-five minutes; the exercises begin with lesson 01.*
#
# <details><summary>Before you start</summary>You need Python, and a training loop in PyTorch that you have written. Everything here ran on CPUs over gloo, PyTorch's message library for them.</details>

# %% [markdown]
# ## Why several processes?
#
# A GPU like the H100 has 80 GB<!-- =load_device("h100_sxm_80").memory_bytes() / GB --> of memory. To train even a Llama of 8 billion parameters takes more memory than that, as lesson 01 will count. So several GPUs share the work. Each has a process of its own, and these processes have to agree on the result. This course is about how they agree, what it costs, and how to notice when they do not.
#
# A process in such a group is called a **rank**. Ranks are numbered from 0, and their number is the **world size**.

# %%
viz.plot_ranks(4)

# %% [markdown]
# Read the picture from left to right. Your notebook is none of the four ranks, so it stands beside them. It sends all of them the same cell, and it collects what each one answers.
#
# The first line of a cell says where the cell runs. With `%%ranks 4` it runs on four ranks, all at once.

# %%
# %%ranks 4
print(f"I am rank {rank} of {world_size}")

# %% [markdown]
# Four processes have run the *same* cell. They may print in any order, but you always read their lines in the order of the ranks.
#
# A few names are there on each rank from the start: `rank`, `world_size`, `device`, `torch`, and `dist`, which is short for `torch.distributed`.
#
# ## Every rank has its own memory
#
# The next cell has the same text for everyone. **Before you run it**, say what rank 3 will show.

# %%
# %%ranks 4
x = 100 - rank
x

# %% [markdown]
# There is one name, but it has four values, because each rank keeps an `x` of its own. There is no shared variable in this course, ever. So if a rank needs what another rank knows, somebody has to *send* it.
#
# The ranks stay alive between cells, so each rank still has its `x`. And the notebook? It is a process of its own, which has never heard of any `x`. The next two cells ask the ranks first, then the notebook.

# %%
# %%ranks 4
x * 2

# %%
"x" in globals()

# %% [markdown]
# When you do want to exchange variables with the ranks, say so. `--push` copies one from the notebook to every rank, and `--pull` brings one back, as a list with an entry for each rank.

# %%
scale = 3

# %%
# %%ranks 4 --push scale --pull scaled
scaled = scale * rank

# %%
scaled

# %% [markdown]
# ## How do ranks agree?
#
# Suppose that each rank has read its own quarter of the data, and so has its own gradient. But all ranks need the same gradient, or their weights drift apart. So they make a call together, a **collective**. The most important collective is **all-reduce**: each rank puts in a tensor, and every rank gets the same result.
#
# Try it with numbers: ranks 0 to 3 hold 1, 2, 3 and 4. The next cell calls all-reduce.
#
# **Predict** what rank 0 holds afterwards, and write it in place of `None`. A right number gets 10 points, and one within a factor of two gets 5.

# %%
# %%ranks 4 --pull after
gradient = torch.tensor([rank + 1.0])
dist.all_reduce(gradient)
after = gradient.item()

# %%
predict(
    "rank 0 after all-reduce of 1, 2, 3, 4",
    guess=None,
    answer=after[0],
    think="one result for all, in which each rank has its part",
)
viz.who_holds_what("all_reduce", 4)

# %% [markdown]
# Read the picture from left to right. Each row is a rank, whose numbers have its colour and letter. Each rank had one number, but here it has four **chunks** of a longer tensor. On the right every chunk has all four colours and a Σ, because it is the sum of its column.
#
# All-reduce **sums**; it does not average. If you said 2.5, you averaged, which is what a training wants. So dividing by the world size is your job.
#
# ## What is right?
#
# Now divide. To check the result, one process computes the same average alone. In this course nothing counts as right until it equals the result of one process.

# %%
# %%ranks 4 --pull averaged
gradient = torch.tensor([rank + 1.0])
dist.all_reduce(gradient)
averaged = gradient / world_size

# %%
alone = torch.tensor([1.0, 2.0, 3.0, 4.0]).mean(dim=0, keepdim=True)
[torch.equal(mine, alone) for mine in averaged]

# %% [markdown]
# Four times `True`, so every rank is right.
#
# ## What happens inside?
#
# A collective is made of messages, and a message goes from one rank to another. The simplest all-reduce has two halves. First everybody sends to rank 0, which adds. This half is called **reduce**. Then rank 0 sends the sum to everybody, which is a **broadcast**.
#
# PyTorch's own call does not show its messages. So the course has collectives of its own, in `comm`, which write down who sent each message, to whom, when, and how many bytes. That record is the **ledger**. An all-reduce can go several ways, and `naive` is the way through rank 0.

# %%
# %%ranks 4
from course_lib import comm

gradient = torch.tensor([rank + 1.0])
comm.all_reduce(gradient, algorithm="naive")

# %% [markdown]
# The result is 10 again, on every rank. Each rank put in one number in float32, which is 4 bytes<!-- =4 -->. **Predict** how many bytes rank 0 sent.

# %%
predict(
    "bytes that rank 0 sent",
    guess=None,
    answer=ledger().bytes_sent(0),
    unit="bytes",
    think="which of the two halves rank 0 sends in, and to how many",
)
viz.plot_bytes_matrix(ledger())

# %% [markdown]
# Look at the first row, which shows that rank 0 sent the sum to each of the three others. Every other row has one entry, in the first column, because that rank sent only to rank 0.
#
# Below is the code that ran, one function for each half. `root` is rank 0, and `peer` is each other rank in turn. A rank sends and receives through its `port`, which also lends it an `inbox` for what arrives. `combine` adds. The line below each name says what the function costs, for p ranks and a tensor of M bytes. Check it for `broadcast`: three times four bytes are the 12 that rank 0 sent.

# %%
display(viz.show_source(naive.reduce), viz.show_source(naive.broadcast))

# %% [markdown]
# So everything goes through rank 0. With four ranks nobody minds. But with a thousand, rank 0 would have to send 999 times, one after the other, while everyone waits. Lesson 02 begins with this problem.
#
# ## When one rank fails
#
# So far everything went well. In the next cell rank 1 makes a mistake, while the other three wait for it in all-reduce. What becomes of those three?

# %% tags=["raises-exception"]
# %%ranks 4
if rank == 1:
    gradient = gradient / None
dist.all_reduce(gradient)

# %% [markdown]
# Read the last line of the output. It names the rank that failed, the line of your cell, and what the others were doing meanwhile. Those three could never have finished, because rank 1 would never have joined them. So all four ranks were started again, and their variables are gone.
#
# In a script the failed process would end, and gloo would tell the others within seconds. But in a notebook a process lives on after an error. So PyTorch alone would let the others wait until gloo's time limit, which is half an hour.

# %% [markdown]
# ## A hang on purpose
#
# The most puzzling failure shows no error at all. It happens when the ranks do not agree on which call comes next. Below is such a cell, which `--timeout 3` ends after three seconds. **Before you run it**, say who waits for whom.

# %% tags=["raises-exception"]
# %%ranks 4 --timeout 3
from course_lib import comm

gradient = torch.tensor([rank + 1.0])
if rank == 2:
    dist.recv(gradient, src=1)
else:
    comm.all_reduce(gradient)

# %% [markdown]
# The last line is a diagnosis. It says *which rank* waits in *which call* on *which line*. Here `#1` means the first collective of the cell. Compare the two lines of code, and you see the bug: rank 2 took the other branch. There it waits for a message that rank 1 never sends, while the others wait for rank 2. Your ranks are back already.
#
# ## A mismatch
#
# There is a third way to fail. All ranks make the same call, but their tensors do not fit together. Below, rank 3 brings five numbers, and the others bring four. **Before you run it**, say what comes out: garbage, a hang, or an error?

# %% tags=["raises-exception"]
# %%ranks 4
from course_lib import comm

comm.all_reduce(torch.ones(5 if rank == 3 else 4))

# %% [markdown]
# It is an error, because our collectives compare notes before they send a tensor. PyTorch's own do so only on request. Read the message from `all_reduce:` on. It says what was attempted, with which values, which rule they break, and what to do. Every complaint about an argument in this course has these four parts.
#
# ## Which of the two is wrong?
#
# Errors are friendly, because they speak up. But the two trainings told you nothing. Both ran the code below, where ranks talk in a single call, all-reduce. The trainings differ in one number: `divide_by` is 4 in A and 1 in B.
#
# **Before you read on**, say which is wrong, and why.

# %%
viz.show_source(train_on_four)

# %% [markdown]
# Training B is wrong. Each rank takes the mean over its own quarter of the rows, and all-reduce sums the four gradients of these means. One process alone would take the mean over all rows. Since the quarters are equally long, the gradient of that one process is the ranks' sum divided by 4. B forgot to divide. So in the first step, where both trainings have the same weights, B's gradient is four times too long.
#
# Since then both losses have come down to the same small number. Take the *last* step, after 39 updates. **Predict** the length of B's gradient there, divided by the length of A's.

# %%
predict(
    "gradient norm in step 40, B over A",
    guess=None,
    answer=norms["training B"][-1] / norms["training A"][-1],
    think="what Adam makes of the length of a gradient, and where that leaves the weights of A and B",
)
viz.plot_loss_curves(losses, norms, title="The same two trainings, and the length of their gradients")

# %% [markdown]
# B's is still four times as long! Only the lower panel shows it. There the lines keep their distance, and on this logarithmic axis a distance is a factor.
#
# The reason is Adam, which divides each gradient by its typical size, so a constant factor cancels, and both trainings keep almost the same weights. Plain SGD does not divide, so its first step would be four times too long. With Adam you may see nothing until somebody clips, because clipping compares a gradient's length with a fixed limit.
#
# So this course trusts no loss curve. It compares the gradients themselves with those of one device. It trains with plain SGD first, because SGD hides nothing.

# %% [markdown]
# ## How to use this course
#
# In every lesson you do what you did in this one.
#
# 1. **Predict.** Say a number before you run the cell.
# 2. **Run.** The processes and the messages are real. Where a time was not measured, the picture says so.
# 3. **Explain.** If the number surprised you, find out why before you go on.
#
# Take along four sentences. A rank is a process with its own memory. All-reduce sums, and dividing is your job. A hang has a diagnosis, which names the rank, the call and the line. And a loss curve can look perfect although the gradients are wrong.

# %%
score()

# %% [markdown]
# ## Questions
#
# **Next:** [lesson 01](01_why_distributed.ipynb) asks what fills a GPU, and how many of them a Llama needs.
#
# <details><summary>1. Four ranks run <code>x = rank</code>. Then rank 0 runs <code>x = 7</code>. What is <code>x</code> on rank 1?</summary>
# Still 1. Each rank has its own memory.
# </details>
#
# <details><summary>2. One rank leaves a loop one step early. What do you see?</summary>
# Nothing at first: the others wait in their next collective. Then comes the time limit, and a report of who waits where.
# </details>
#
# <details><summary>3. The loss with 4 ranks equals the loss with 1. Are the gradients right?</summary>
# Not proven. Compare the gradients themselves.
# </details>

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## When did it happen?
#
# The ledger also knows times. This is an all-reduce through rank 0 of *your* run. Four numbers need hardly any time to travel. An arrow is a message, from where its sending began to where it had arrived. A long *send* or *receive* has mostly waited too: for the other rank, which takes messages in turn, or for one of your cores. Run the cell again, and it looks different.


# %% varies="times differ on every machine and in every run"
from course_lib import comm


def through_rank_0():
    comm.all_reduce(torch.ones(4), algorithm="naive")


run_ranks(through_rank_0, 4)
viz.plot_timeline(ledger(), title="All-reduce through rank 0, as it just ran")

# %% [markdown]
# Sometimes a few ranks should work while the others rest. `--only` says which ones run the cell.

# %%
# %%ranks 4 --only 0,2
rank * 10

# %% [markdown]
# ## On a GPU node and on a cluster
#
# With as many GPUs as ranks, the same cells take one GPU for each rank: `device` says which, and messages go over NCCL, NVIDIA's library. With fewer GPUs the ranks run on the CPU and say so; `%%ranks 4 --device cuda` makes them share. Neither ran for this page.
#
# Outside a notebook, put a function into a file and start it with torchrun.
#
# ```bash
# torchrun --nproc-per-node 4 -m course_lib.ranks my_file:my_function
# ```
#
# References: [PyTorch distributed overview](https://docs.pytorch.org/docs/stable/distributed.html).
