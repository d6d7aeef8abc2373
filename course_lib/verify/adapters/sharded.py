"""Models of DTensors: PyTorch's `fully_shard`, `parallelize_module`, or both."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh

from course_lib.config import TrainConfig
from course_lib.verify.adapters.loop import Loop


class Sharded(Loop):
    """A loop over a model that was cut already; ranks along `shares` have other rows, without it all have the same."""

    def __init__(self, model: nn.Module, config: TrainConfig, shares: DeviceMesh | None = None) -> None:
        super().__init__(model, config)
        if shares is not None:
            self.rank, self.n_shares, self.group = shares.get_local_rank(), shares.size(), shares.get_group()

    def output(self, inputs: Tensor) -> Tensor:
        found = super().output(inputs)
        for module in self.model.modules():  # a forward without a backward leaves weights of `fully_shard` gathered
            if reshard := getattr(module, "reshard", None):
                reshard()
        return found

    def save(self, folder: str) -> None:
        state_dict_saver.save(self._state(), checkpoint_id=folder)

    def load(self, folder: str) -> None:
        state = self._state()
        state_dict_loader.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])

    def _state(self) -> dict[str, Any]:
        return dict(zip(("model", "optim"), get_state_dict(self.model, self.optimizer), strict=True))
