# %% [markdown]
# # 00 · Start here: which of these two is wrong?
#
# Four processes train a tiny model together. They do it twice, with the same data, the same start and the same number of steps. Yet in one of the two trainings every gradient is wrong. The picture below shows the losses of both. Run the folded cell without opening it: the training in it comes back at the end, when you can read it.

# %% folded=true
# %load_ext course_lib
import torch
import torch.distributed as dist

from course_lib import viz
from course_lib.checks import predict, score
from course_lib.comm import naive
from course_lib.ranks import ledger, run_ranks


def train_tiny(divide_by, steps=40):
    torch.manual_seed(0)
    data, solution = torch.randn(64, 8), torch.randn(8, 1)
    mine = data.tensor_split(dist.get_world_size())[dist.get_rank()]  # this process's rows
    w = torch.zeros(8, 1, requires_grad=True)
    adam, losses, gradients = torch.optim.Adam([w], lr=0.1), [], []
    for _ in range(steps):
        losses.append(((data @ w - data @ solution) ** 2).mean().item())  # over all rows, to be drawn
        adam.zero_grad()
        ((mine @ w - mine @ solution) ** 2).mean().backward()
        dist.all_reduce(w.grad)
        w.grad /= divide_by
        gradients.append(w.grad.clone())
        adam.step()
    return torch.tensor(losses), torch.stack(gradients)


runs = {"training A": run_ranks(train_tiny, 4, 4)[0], "training B": run_ranks(train_tiny, 4, 1)[0]}

# %%
viz.plot_loss_curves(
    {name: losses.tolist() for name, (losses, _) in runs.items()},
    title="Two trainings on four processes; one has wrong gradients",
)

# %% [markdown]
# Look for a difference between the two lines. B's thin line lies in the middle of A's broad one, all the way. So from these losses nobody can say which training is the wrong one.
#
# Such a mistake happens to careful people too. In September 2025 a user reported that one of PyTorch's own calls [gave wrong numbers](https://github.com/pytorch/pytorch/issues/162338). PyTorch's developers put the label *silent* on the report, because no error message tells you of it.

# %% [markdown]
# In forty-five minutes you will be able to
# - say which of the two is wrong, and why the loss cannot know.
# - run your own code on several processes, from a notebook.
# - find out from a single line of output why such processes hang.
#
# <details><summary>Before you start</summary>You should know Python, and have written a training loop in PyTorch. Everything here ran on CPUs over gloo, PyTorch's message library for them.</details>

# %% [markdown]
# ## Why several processes?
#
# A GPU like the H100 has 80 GB<!-- =load_device("h100_sxm_80").memory_bytes() / GB --> of memory. To train even a Llama of 8 billion parameters takes more memory than that, as lesson 01 counts. So several GPUs share the work. Each has its own process, and the processes must agree on the result. This course is about how they agree, what it costs, and how to notice if they do not. CPU processes must agree too, so you need no GPU.
#
# A process in such a group is called a **rank**. Ranks are numbered from 0, and how many there are is the **world size**.

# %%
viz.plot_ranks(4)

# %% [markdown]
# Read the picture from left to right. Your notebook is none of the four ranks, so it stands beside them. It sends all of them the same cell, and it collects what each one answers.
#
# A cell that begins with `%%ranks 4` runs on four ranks, all at once. Every other cell runs in the notebook.

# %%
# %%ranks 4
print(f"I am rank {rank} of {world_size}")

# %% [markdown]
# Four processes have run the *same* cell. They may print in any order, but you always read their lines in the order of the ranks. What a rank prints stands after a bar, and the value of the cell's last line after an arrow.
#
# A few names are there on each rank from the start: `rank`, `world_size`, `torch`, and `dist`, which is short for `torch.distributed`.
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
# And the notebook, which sent them the cell? **Before you run** the next one, say whether the notebook has an `x` too.

# %%
"x" in globals()

# %% [markdown]
# It has none, because the notebook is a process of its own, which never ran that cell. But the ranks stay alive, so each still has its `x`.
#
# When you do want a rank's variable in the notebook, say so: `--pull` brings it as a list with an entry for each rank. For the other way there is `--push`.

# %%
# %%ranks 4 --pull tripled
tripled = 3 * x

# %%
tripled

# %% [markdown]
# **Your turn.** Let every rank show the square of its own number. Write the whole cell, its first line included, in place of the comment below. You should then read 0, 1, 4 and 9.
#
# <details><summary>One way to do it</summary><code>%%ranks 4</code> on the first line, <code>rank ** 2</code> on the second.</details>

# %%
# your cell goes here, in place of this line

# %% [markdown]
# ## How do ranks agree?
#
# First take a model that fits on one GPU. Each rank has a copy of it and its own quarter of the data, so each finds a different gradient. But all need the same one, or their copies drift apart. So they all make one call together, a **collective**. The most important one is **all-reduce**: each rank puts in a tensor, and every rank gets the same result.
#
# Ranks 0 to 3 hold 1, 2, 3 and 4, and call all-reduce. **Predict** what rank 0 then holds, and write it in place of `None`. More than one answer would make sense, so settle on one.

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
# Each row is a rank, with a colour and a letter of its own. Your ranks had one number each, which is a single column. Here each has a longer tensor, cut into four **chunks**. On the right every chunk has all four colours and a Σ, because it is the sum of its column.
#
# Unless told otherwise, all-reduce **sums**. If you said 2.5, you averaged. Whoever wants the average has to divide by the world size.
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
# A collective is made of messages from one rank to another. The simplest all-reduce has two halves. First everybody sends to rank 0, which adds. This half is called **reduce**. Then rank 0 sends the sum to everybody, which is a **broadcast**.
#
# PyTorch's own call does not show its messages. So the course has collectives of its own, in `comm`, which write down who sent each message, to whom, when, and how many bytes. That record is the **ledger**. An all-reduce can go several ways, and `naive` is the way through rank 0. Take it now, with two numbers on each rank.

# %%
# %%ranks 4
from course_lib import comm

gradient = torch.tensor([rank + 1.0, 0.5])
comm.all_reduce(gradient, algorithm="naive")

# %% [markdown]
# Every rank gets both sums, 10 and 2. Each rank put in two numbers in float32, of 4 bytes<!-- =4 --> each. **Predict** how many bytes rank 0 sent.

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
# Look at the first row: rank 0 sent both sums to each of the three others. Every other rank sent its own tensor, and only to rank 0.
#
# Below is the code that ran. Begin with the last line of `reduce`: every rank but the `root`, here rank 0, sends its tensor through its `port`. The root makes `room` for one tensor, the `inbox`, receives from each `peer` in turn, and `combine` adds the `inbox` to its own `x`. The line in quotes says what each function costs, for p ranks and a tensor of M bytes. Check it for `broadcast`: three times eight bytes are the 24 that rank 0 sent.

# %%
display(viz.show_source(naive.reduce), viz.show_source(naive.broadcast))

# %% [markdown]
# So everything goes through rank 0. With a thousand ranks, rank 0 would receive 999 messages and then send 999, one after the other.
#
# ## When one rank fails
#
# In the next cell rank 1 makes a mistake, while the other three wait for it in all-reduce. **Before you run it**, say what becomes of those three.

# %% tags=["raises-exception"]
# %%ranks 4
if rank == 1:
    gradient = gradient / None
dist.all_reduce(gradient)

# %% [markdown]
# Read the last line of the output. It names the rank that failed, the line of your cell, and what the others were doing meanwhile. Those three could never have finished without rank 1. So the course started all four ranks again, and their variables are gone.
#
# In a script the failed process would end, and PyTorch's gloo would notice the broken connection. But here the rank's process lives on after its error, and PyTorch alone would let the others wait until gloo's time limit, which is [half an hour](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group).

# %% [markdown]
# ## A hang on purpose
#
# The most puzzling failure shows no error at all. It happens, for example, when the ranks do not agree on which call comes next. Below, `dist.recv` waits for a message from the rank `src`, and `--timeout 3` sets a time limit in seconds. **Before you run it**, say who waits for whom.

# %% tags=["raises-exception"]
# %%ranks 4 --timeout 3
from course_lib import comm

gradient = torch.tensor([rank + 1.0])
if rank == 2:
    dist.recv(gradient, src=1)
else:
    comm.all_reduce(gradient)

# %% [markdown]
# The last line is a diagnosis. It says *which rank* waits in *which call* on *which line*. Here `#1` means the first collective of the cell. Compare the two lines of code: rank 2 took the other branch, where it waits for a message from rank 1. But rank 1 is in all-reduce with ranks 0 and 3, and that call cannot end without rank 2.

# %% [markdown]
# ## A mismatch
#
# In the third way to fail, all ranks make the same call, but their tensors do not fit together. Below, rank 3 brings five numbers, the others four. Before a tensor travels, our collectives compare notes about its length. **Before you run it**, say who complains: rank 3, the other three, or all four?

# %% tags=["raises-exception"]
# %%ranks 4
from course_lib import comm

comm.all_reduce(torch.ones(5 if rank == 3 else 4))

# %% [markdown]
# All four complain, because each rank reads all notes: four, four, four and five. None of them can know which length you meant.
#
# PyTorch's own collectives compare notes only if you set `TORCH_DISTRIBUTED_DEBUG=DETAIL`. When we tried a script without it, some ranks went on with a wrong sum.

# %% [markdown]
# ## Which of the two is wrong?
#
# Errors are friendly, because they speak up. But the two trainings told you nothing. Both ran the code below. As `divide_by`, A was given 4 and B was given 1, so B did not divide.
#
# All-reduce sums, so perhaps B is wrong. But look at `.mean()`: each rank's loss is an average already, over its own 16 rows. So perhaps A divides once too often. Let one process with all 64 rows decide. It runs the same training in the second cell below, and its 40 gradients are compared with A's and B's. **Predict** which training is wrong, A or B.

# %%
viz.show_source(train_tiny)

# %%
one_process = run_ranks(train_tiny, 1, 1)[0]  # on 1 rank, with divide_by=1; what rank 0 returns
apart = {
    name: [(mine - its).abs().max() for mine, its in zip(run, one_process, strict=True)] for name, run in runs.items()
}
predict(
    'the training with wrong gradients, "A" or "B"',
    guess=None,
    answer="".join(name[-1] for name, (_, gradients) in apart.items() if gradients > 1e-4),
    think="the mean that one process takes, and what all-reduce makes of the means of four ranks",
)
for name, (losses, gradients) in apart.items():
    print(f"{name} against one process: losses differ by {losses:.5f} at most, gradients by {gradients:.5f}")

# %% [markdown]
# B is wrong. In all 40 steps A's gradients are those of one process, to five decimals. So why does the mean not suffice? Each rank takes the mean over its own quarter of the rows, and all-reduce *adds* four such means. One process takes one mean over all rows. Since the quarters are equally long, that is the **average** of the four. B forgot to divide.
#
# But read the losses in the same output. B's are as right as A's, although every update of B came from a wrong gradient! After 39 such updates B may have other weights and gradients. A gradient's norm is its length. **Predict** B's norm in step 40, divided by A's.

# %%
three = {"one process": one_process, "training B": runs["training B"], "training A": runs["training A"]}
lengths = {name: gradients.norm(dim=(1, 2)).tolist() for name, (_, gradients) in three.items()}
predict(
    "gradient norm in step 40, B over A",
    guess=None,
    answer=lengths["training B"][-1] / lengths["training A"][-1],
    think="what Adam makes of the length of a gradient, and where that leaves the weights of A and B",
)
losses = {name: losses.tolist() for name, (losses, _) in three.items()}
viz.plot_loss_curves(losses, lengths, title="The same trainings, and the length of their gradients")

# %% [markdown]
# It is still four times as long! The broad line is now one process, and A lies on it in both panels. In the lower one B is always the same distance above A, and on this logarithmic axis a distance is a factor.
#
# The reason is Adam, which divides each gradient by its typical size. So the factor cancels, and B's weights stay almost those of A. But at the same weights, B's undivided sum is again four times A's average. Adam hid the mistake: with plain SGD nothing cancels, and B's first step would be four times too long.
#
# So this course trusts no loss curve. It compares the gradients themselves with those of one process.

# %% [markdown]
# ## How to use this course
#
# In every lesson you do what you did here.
#
# 1. **Predict.** Say a number before you run the cell.
# 2. **Run.** Processes and messages are real. Where a time was not measured, the picture says so.
# 3. **Explain.** If the number surprised you, find out why before you go on.
#
# Take along four sentences. A rank is a process with its own memory. All-reduce sums, and dividing is your job. In this course a hang has a diagnosis, which names the rank, the call and the line. And a loss curve can look perfect although every gradient is four times too long.

# %%
score()

# %% [markdown]
# ## Questions
#
# <details><summary>1. Four ranks run <code>x = rank</code>. Then rank 0 runs <code>x = 7</code>. What is <code>x</code> on rank 1?</summary>
# Still 1. Each rank has its own memory.
# </details>
#
# <details><summary>2. Four ranks call all-reduce in a loop, but one leaves it early. What do you see?</summary>
# Nothing, until the cell reaches its time limit. Then a report says that the others wait in all-reduce.
# </details>
#
# <details><summary>3. The loss with 4 ranks equals the loss with 1. Are the gradients right?</summary>
# Not proven. Compare the gradients themselves.
# </details>
#
# **Next:** [lesson 01](01_why_distributed.ipynb) asks what fills a GPU, and how many GPUs a Llama needs.

# %% [markdown]
# # Going deeper
#
# Each part below stands alone, and you can skip all of them.
#
# ## When did it happen?
#
# The ledger also knows times. Below is an all-reduce through rank 0, as it went on *your* machine. Its six messages make twelve events. An arrow is a message, from its sending to its arrival. Rank 0 receives in the order of the ranks, so an early message has a long arrow. Four numbers need hardly any time to travel, so a long *send* or *receive* mostly waits, for a busy rank or a free core. The palest colour is only the wait for a message whose sending had not begun. Run it again, and only that order stays.


# %% varies="times differ on every machine and in every run"
from course_lib import comm


def through_rank_0():
    comm.all_reduce(torch.ones(4), algorithm="naive")


run_ranks(through_rank_0, 4)
viz.plot_timeline(ledger(), title="All-reduce through rank 0, as it just ran")

# %% [markdown]
# ## Only some of the ranks
#
# Sometimes a few ranks should work while the others rest. `--only` says which ones run the cell.

# %%
# %%ranks 4 --only 0,2
rank * 10

# %% [markdown]
# ## Find this hang yourself
#
# The four ranks below stand in a circle. Each wants to hand its number to the next one, and they hang. The code is folded. Run it, and say from the last line of the output alone who waits for whom. Then unfold the code and mend it, until ranks 0 to 3 have received 4, 1, 2 and 3.
#
# <details><summary>One way to mend it</summary>Everyone receives before sending, so nobody sends. Let rank 0 send first and receive afterwards.</details>

# %% folded=true tags=["raises-exception"]
# %%ranks 4 --timeout 3
number, left, right = torch.tensor([rank + 1.0]), (rank - 1) % world_size, (rank + 1) % world_size
received = torch.empty(1)
dist.recv(received, src=left)
dist.send(number, dst=right)
received

# %% [markdown]
# ## On GPUs, and from a script
#
# With as many GPUs as ranks, each rank has one of its own, and messages go over NCCL, NVIDIA's library. NCCL carries only what lies on a GPU, so create your tensors there: `torch.ones(4, device=device)`, where `device` is a name that every rank knows. With fewer GPUs the ranks run on the CPU and say so; `%%ranks 4 --device cuda` makes them share the GPUs. For this page we ran neither NCCL nor shared GPUs.
#
# Outside a notebook, put a function into a file and start it with torchrun.
#
# ```bash
# torchrun --nproc-per-node 4 -m course_lib.ranks my_file:my_function
# ```
#
# References: [PyTorch's page on torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html).
