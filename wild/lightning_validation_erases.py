"""A validation in the middle of an accumulation threw away the gradients that had been accumulated so far.

The optimizer then stepped on the rest alone, divided as if all parts were there, whenever `val_check_interval` did not
fall on the end of an accumulation.
"""

from torch.utils.data import DataLoader, TensorDataset

from wild import lightning_own_shuffles as shuffles

EXHIBIT = {
    "library": "pytorch_lightning",
    "links": ["Lightning-AI/pytorch-lightning#18710"],
    "old": "pytorch_lightning==2.0.2 lightning_fabric==2.0.2 "
    "lightning_utilities==0.14.3 torchmetrics==1.7.4 setuptools==75.8.0",
    "mended": "pytorch_lightning==2.1.0 lightning_fabric==2.1.0 "
    "lightning_utilities==0.14.3 torchmetrics==1.7.4 setuptools==75.8.0",
    "ranks": 1,
    "rung": "gradients",
    "cause": "micro-batches missing",
}


class Validated(shuffles.Words):
    def validation_step(self, batch, index):
        return None


class Interrupted(shuffles.Fitted):
    """Four parts of a batch, and a validation after the second."""

    n_microbatches = 4

    def __init__(self, config):
        self.model, self.max_norm = Validated(config), config.max_norm

    def step(self, batch):
        parts = DataLoader(TensorDataset(*batch), batch_size=len(batch[0]) // 4)
        often = {"accumulate_grad_batches": 4, "val_check_interval": 2, "num_sanity_val_steps": 0}
        self.fit(parts, parts, devices=1, **often)


reference, parallel, batches = shuffles.reference, Interrupted, shuffles.batches
