"""05.11: what PyTorch's own errors come from in this exercise; they name an operator or two sizes, and no plan."""

from __future__ import annotations

_MIXED = " got mixed torch.Tensor and DTensor"

PLAN_ERRORS = {
    "IndexError: Target": "the logits are this rank's words alone, as a plain tensor, so the loss takes them for all; "
    "with use_local_output=False they are a DTensor, which knows that it is cut",
    f"aten.nll_loss_forward.default{_MIXED}": "the logits are a DTensor and the targets are none: compute the loss "
    "inside tp.loss_parallel()",
    f"aten.nll_loss_backward.default{_MIXED}": "the loss's backward belongs into tp.loss_parallel(), as its "
    "forward does",
    f"aten.gather.default{_MIXED}": "tp.loss_parallel() knows F.cross_entropy, and no loss that is put "
    "together by hand",
    "loss_parallel() requires": "it wants logits that are cut along the words: which output_layouts has the head?",
    f"aten.mm.default{_MIXED}": "a layer with a plain weight reads a DTensor: does the plan cut every layer that reads "
    "it, under the name that named_modules() has?",
    f"aten.mul.Tensor{_MIXED}": "a plain tensor, a norm's weight perhaps, is multiplied by a DTensor: which style "
    "hands that on?",
    f"aten.add.Tensor{_MIXED}": "a DTensor is added to a plain tensor: which style passes a DTensor on?",
    "mat1 and mat2 shapes cannot be multiplied": "are the outputs of the layer before cut, and has this one its whole "
    "weight? After a ColwiseParallel comes a layer that is cut by its inputs",
    "must have same reduction dim": "a RowwiseParallel layer takes what it reads for a part, unless input_layouts says "
    "that it is whole",
    "to match target batch_size": "positions are put together or cut on the way to the loss: which layer's "
    "input_layouts or output_layouts says that they are cut, where every rank has all?",
    "Given normalized_shape": "this norm reads a part of each position: which output_layouts has the layer before?",
    "_scaled_dot_product": "attention computes with plain tensors: which style leaves q, k and v DTensors?",
    "in loading state_dict": "plain tensors do not fit where DTensors stand: load the weights before "
    "parallelize_module",
}
