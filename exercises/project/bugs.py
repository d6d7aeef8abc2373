"""What may be planted into the project's trainers: a seed chooses three in each, in three functions."""

from typing import NamedTuple


class Bug(NamedTuple):
    """An edit of a trainer, the function in which it stands, what is wrong, and the first rung on which it shows."""

    function: str
    old: str
    new: str
    wrong: str
    rung: str = "one step of SGD"


BUGS = {
    "replicas": (
        Bug(
            "take_over",
            "    for parameter in model.parameters():\n",
            "    for parameter in filter(lambda p: p.requires_grad, model.parameters()):\n",
            "frozen weights are not taken over from rank 0",
        ),
        Bug(
            "take_over",
            "dist.broadcast(parameter.data, src=0)",
            "dist.broadcast(parameter.data.clone(), src=0)",
            "a copy is overwritten, and the model keeps its own weights",
        ),
        Bug(
            "rows_of",
            "x.tensor_split(dist.get_world_size())[dist.get_rank()]",
            "x[dist.get_rank() :: dist.get_world_size()][: len(x) // dist.get_world_size()]",
            "the rows that do not divide are left out",
            "all steps of SGD",
        ),
        Bug(
            "learn_from",
            "/ len(x)\n",
            "/ max(len(rows), 1) / MICRO_BATCHES / dist.get_world_size()\n",
            "each micro-batch has its own mean, so the rows do not count alike",
            "all steps of SGD",
        ),
        Bug(
            "learn_from",
            "        loss.backward()\n",
            "        if len(rows) == len(rows_of(x).tensor_split(MICRO_BATCHES)[0]):\n            loss.backward()\n",
            "micro-batches that are shorter than the first have no backward",
            "all steps of SGD",
        ),
        Bug(
            "add_up",
            "    dist.all_reduce(flat)\n",
            "    dist.all_reduce(flat, op=dist.ReduceOp.AVG)\n",
            "shares of a sum are averaged: too small by the number of processes",
        ),
        Bug(
            "add_up",
            "p.grad.copy_(gradient.view_as(p))",
            "p.grad.add_(gradient.view_as(p))",
            "each process's own share is in it twice",
        ),
        Bug(
            "add_up",
            "torch.cat([p.grad.flatten() for p in trained])",
            "torch.cat([p.grad.flatten() for p in trained]).bfloat16()",
            "the gradients travel in bfloat16",
        ),
        Bug(
            "save",
            '"optimizer": optimizer.state_dict()',
            '"optimizer": {**optimizer.state_dict(), "state": {}}',
            "the moments are not saved",
            "goes on where it stopped",
        ),
        Bug(
            "load",
            '        model.load_state_dict(state["weights"])\n',
            '        if dist.get_rank() == 0:\n            model.load_state_dict(state["weights"])\n',
            "rank 0 alone goes on from the saved weights",
            "goes on where it stopped",
        ),
        Bug(
            "main",
            '        add_up(trained)\n        norms.append(nn.utils.clip_grad_norm_(trained, task["clip"]).item())\n',
            '        norms.append(nn.utils.clip_grad_norm_(trained, task["clip"]).item())\n        add_up(trained)\n',
            "clipped before the gradients are added up, by a norm of its own on each process",
        ),
        Bug("main", "        optimizer.zero_grad()\n", "", "gradients of the step before stay", "all steps of SGD"),
    ),
    "shards": (
        Bug(
            "rows_of",
            "return x.tensor_split(dist.get_world_size())[dist.get_rank()]",
            "return x.tensor_split(dist.get_world_size())[dist.get_rank() // 2 * 2]",
            "every second process reads the rows of the one before it",
        ),
        Bug(
            "learn_from",
            "/ len(x)\n",
            "/ len(x) * dist.get_world_size()\n",
            "a factor for an average, where the shares are added up",
        ),
        Bug(
            "padded_flat",
            "torch.cat([tensor.flatten() for tensor in tensors])",
            "torch.cat([tensor.mT.flatten() if tensor.ndim == 2 else tensor.flatten() for tensor in tensors])",
            "flattened by columns, and read back by rows",
        ),
        Bug(
            "own_part",
            "flat.chunk(dist.get_world_size())[dist.get_rank()]",
            "flat.chunk(dist.get_world_size())[dist.get_rank() - 1]",
            "the part of a neighbour",
        ),
        Bug(
            "summed_part",
            "list(gradients.chunk(dist.get_world_size())))",
            "list(gradients.chunk(dist.get_world_size())), op=dist.ReduceOp.MAX)",
            "the largest share is taken instead of the sum",
        ),
        Bug("clip", "    dist.all_reduce(square)\n", "", "each process clips by the norm of its own part"),
        Bug(
            "clip",
            "    square = part.square().sum()\n    dist.all_reduce(square)\n    norm = square.sqrt()\n",
            "    norm = part.norm()\n    dist.all_reduce(norm)\n",
            "norms are added up instead of their squares",
        ),
        Bug(
            "clip",
            "square = part.square().sum()\n    dist.all_reduce(square)",
            "square = part.square().sum()\n    dist.all_reduce(square, op=dist.ReduceOp.AVG)",
            "the squares of the parts are averaged",
        ),
        Bug(
            "clip",
            "    part.mul_((most / (norm + 1e-6)).clamp(max=1.0))\n",
            "    part.mul((most / (norm + 1e-6)).clamp(max=1.0))\n",
            "the scaled gradient is thrown away",
            "AdamW, decay, clipping",
        ),
        Bug(
            "share",
            "flat[: sum(sizes)].split(sizes)",
            "flat[-sum(sizes) :].split(sizes)",
            "the padding is taken from the front",
        ),
        Bug(
            "save",
            'state = {"part": part.detach(), "optimizer": optimizer.state_dict()}\n',
            'state = {"part": part.grad, "optimizer": optimizer.state_dict()}\n',
            "the gradient is saved instead of the weights",
            "goes on where it stopped",
        ),
        Bug(
            "load",
            '        optimizer.load_state_dict(state["optimizer"])\n        share(part, trained)\n',
            '        optimizer.load_state_dict(state["optimizer"])\n',
            "the model itself stays at the weights of the task",
            "goes on where it stopped",
        ),
        Bug(
            "load",
            '        optimizer.load_state_dict(state["optimizer"])\n',
            "",
            "the moments are not loaded",
            "goes on where it stopped",
        ),
        Bug(
            "main",
            "        model.zero_grad()\n",
            "        optimizer.zero_grad()\n",
            "the optimizer knows the flat part alone, so the model's own gradients stay",
            "all steps of SGD",
        ),
        Bug(
            "main",
            "        optimizer.step()\n        share(part, trained)\n",
            "        share(part, trained)\n        optimizer.step()\n",
            "the weights are shared before the step, so the model is a step behind",
        ),
    ),
    "mesh": (
        Bug(
            "backward",
            "        dist.all_reduce(gradient, group=ctx.group)\n",
            "",
            "the parts of the gradient at a block's entrance are not added up",
        ),
        Bug(
            "backward",
            "    def backward(ctx, gradient):\n        return gradient, None",
            "    def backward(ctx, gradient):\n        return gradient / TP, None",
            "the gradient at a block's exit is shared out, where every rank needs all of it",
        ),
        Bug(
            "forward",
            "hidden @ self.down.weight.T, self.tp) + self.down.bias",
            "self.down(hidden), self.tp)",
            "the bias is added once on each rank of tp",
        ),
        Bug(
            "forward",
            "hidden = F.gelu(self.up(Enter.apply(self.norm(x), self.tp)))",
            "hidden = F.gelu(self.up(self.norm(Enter.apply(x, self.tp))))",
            "the norm stands behind the entrance, so its weights get a part of their gradient",
        ),
        Bug(
            "cut_dim",
            'if ".up." in name:',
            'if name.endswith("up.weight"):',
            "the bias of `up` is not cut with its weight",
        ),
        Bug(
            "make_groups",
            "    return dp[dist.get_rank() % TP], tp[dist.get_rank() // TP]",
            "    return dp[dist.get_rank() // TP % len(dp)], tp[dist.get_rank() // TP]",
            "a process is given a dp group that it may not be in",
        ),
        Bug(
            "parts_of",
            ".chunk(TP, cut[name])[rank]",
            ".chunk(TP, cut[name])[dist.get_rank() // TP]",
            "the part is chosen by the replica's number",
        ),
        Bug(
            "parts_of",
            "w if cut[name] is None else",
            "w if cut[name] != 0 else",
            "weights that are cut along dimension 1 are mistaken for others",
        ),
        Bug("whole", "torch.cat(pieces, dim)", "torch.cat(pieces[::-1], dim)", "the parts are put together backwards"),
        Bug(
            "learn_from",
            "part.tensor_split(dist.get_world_size(dp))[dist.get_rank(dp)]",
            "part.tensor_split(dist.get_world_size())[dist.get_rank()]",
            "the ranks of one replica read different rows",
        ),
        Bug(
            "learn_from",
            "/ len(x)\n",
            "/ max(len(rows), 1) / MICRO_BATCHES / dist.get_world_size(dp)\n",
            "each micro-batch has its own mean, so the rows do not count alike",
            "all steps of SGD",
        ),
        Bug(
            "add_up",
            "dist.all_reduce(flat, group=dp)",
            "dist.all_reduce(flat)",
            "different parts of a weight are added up along tp",
        ),
        Bug("clip", "    dist.all_reduce(square, group=tp)\n", "", "the other rank's parts are not counted"),
        Bug(
            "clip",
            "    dist.all_reduce(square, group=tp)\n"
            "    for name, p in model.named_parameters():\n"
            "        if p.requires_grad and cut_dim(name) is None:\n"
            "            square += p.grad.square().sum()\n",
            "    for name, p in model.named_parameters():\n"
            "        if p.requires_grad and cut_dim(name) is None:\n"
            "            square += p.grad.square().sum()\n"
            "    dist.all_reduce(square, group=tp)\n",
            "what every rank of tp holds is counted twice",
        ),
        Bug(
            "clip",
            "            p.grad.mul_((most / (norm + 1e-6)).clamp(max=1.0))\n",
            "            p.grad.mul_((most / (square + 1e-6)).clamp(max=1.0))\n",
            "scaled by the square of the norm",
            "AdamW, decay, clipping",
        ),
        Bug(
            "save",
            'torch.save(state, folder / f"state-{dist.get_rank()}.pt")',
            'torch.save(state, folder / f"state-{dist.get_rank() // TP}.pt")',
            "the ranks of one replica overwrite each other's file",
            "goes on where it stopped",
        ),
        Bug(
            "load",
            '        optimizer.load_state_dict(state["optimizer"])\n',
            "",
            "the moments are not loaded",
            "goes on where it stopped",
        ),
    ),
}
