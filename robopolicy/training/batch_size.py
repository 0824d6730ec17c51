"""Choose how many windows a batch of imitation has, and say before a long training how long it will take."""

from __future__ import annotations

import copy
import logging
import os
import time
from dataclasses import replace

import torch
from torch import Tensor

from robopolicy.config.instantiate import value_of
from robopolicy.config.schema import TARGET
from robopolicy.core.errors import ConfigError
from robopolicy.datasets.batches import Batches
from robopolicy.datasets.episodes import Episodes, take
from robopolicy.policies.base import Policy
from robopolicy.runs.run_dir import CONFIG, dump, read_config
from robopolicy.training.train_config import TrainConfig
from robopolicy.utils import ranks
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.memory import free_memory

USUAL, ON_CPU, LEAST = 256, 64, 8  # windows: of numbers, of pictures on a CPU, and at least
LONG_S = 1_800.0  # a training beyond it is warned about
_TIMED = 5  # updates that the estimate is of, behind the first one
_MEASURED = 2  # windows that memory is measured on
_GIB = 2.0**30

_log = logging.getLogger(__name__)


def with_batch_size(config: TrainConfig, policy: Policy, episodes: Episodes, *, resumed: bool) -> TrainConfig:
    """Return the config with a number of windows for the loop `offline`, and save it in the run's config.

    A resumed run keeps its number, on a machine with less memory too. Other loops have numbers of their own.

    Raises:
        ConfigError: see chosen_batch_size.
    """
    if config.loop[TARGET] != "offline":
        return config
    saved = read_config(config.run_dir)
    own = (saved or {}).get("loop") or {}
    number = own.get("batch_size") if resumed else None
    if number is None:
        wanted = value_of(config.loop, "loop", "batch_size")
        number = chosen_batch_size(wanted, policy, episodes, next(policy.parameters()).device)
        if saved is not None and not ranks.rank():
            saved["loop"] = {**own, "batch_size": number}
            write_atomically(config.run_dir / CONFIG, dump(saved))
    return replace(config, loop={**config.loop, "batch_size": number})


def chosen_batch_size(wanted: int | None, policy: Policy, episodes: Episodes, device: torch.device) -> int:
    """Return the number of windows in a batch that fits into memory.

    Numbers alone: 256. Pictures or point clouds: 256 on a GPU and 64 on a CPU, halved until a batch takes half of the
    free memory at most. What a window takes is measured: the tensors that a loss keeps for its gradient, and as much
    again while that is computed. Several ranks learn a part each: on CPUs those of one machine share its memory. All
    take the smallest number.

    Args:
        wanted: the user's number; None: by this rule.
        policy: whose loss is minimised; it stays as it is. episodes: that it learns from.

    Raises:
        ConfigError: `wanted`, or else 8 windows, take more than the free memory.
    """
    if not policy.spec.reads_pictures:
        return wanted or USUAL
    window = 2 * _kept_bytes(policy, _sample(policy, episodes, device)) / _MEASURED
    free, share = _free_bytes(device, [episodes.obs[key] for key in policy.spec.observation]), _share(device)
    fitting = min(ranks.gather(_fitting(window * share, free, most=USUAL if device.type == "cuda" else ON_CPU)))
    if wanted is None:
        wanted = max(LEAST, fitting)
        if ranks.rank() == 0:
            print(f"loop.batch_size: {wanted} windows of {window / 2**20:.1f} MiB, {free / _GIB:.1f} GiB are free")
    if wanted * window * share > free:
        mend = f"Give loop.batch_size={fitting}, or" if fitting >= LEAST else "Give"
        raise ConfigError(
            f"loop.batch_size: expected a batch that fits into {free / _GIB:.1f} GiB of free memory, found {wanted} "
            f"windows of {window / 2**20:.0f} MiB. {mend} smaller pictures or fewer cameras."
        )
    return wanted


def _share(device: torch.device) -> float:
    """Return the part of a batch that lies in the memory of `device`: one rank's on a GPU, all of a machine's on CPUs.

    torchrun tells how many ranks a machine has; without its word all are taken to be on this one.
    """
    count = ranks.count()
    here = 1 if device.type == "cuda" else min(count, int(os.environ.get("LOCAL_WORLD_SIZE", count)))
    return here / count


def _sample(policy: Policy, episodes: Episodes, device: torch.device) -> dict[str, Tensor]:
    """Return a batch of the first frames; of one episode, as preparing all of them can take long."""
    first = take(episodes, torch.arange(episodes.num_episodes) == 0)
    batches = Batches(
        first, policy.spec, batch_size=_MEASURED, seed=0, device=device, precompute_features=policy.precompute_features
    )
    return batches[0]


def _fitting(window: float, free: float, *, most: int) -> int:
    """Return the largest power of two of windows that takes half of the free memory, at most `most`; 0: none."""
    size = most
    while size and size * window > free / 2:
        size //= 2
    return size


def _kept_bytes(policy: Policy, batch: dict[str, Tensor]) -> int:
    """Return the bytes that a policy's loss keeps for its gradient, each tensor's memory once, without parameters."""
    model = copy.deepcopy(policy)  # running statistics of a layer must not see this batch
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if (memory := tensor.untyped_storage()).data_ptr() not in own:
            kept[memory.data_ptr()] = memory.nbytes()
        return tensor

    with torch.random.fork_rng(devices=()), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss, _ = model.loss(batch)
    del loss
    return sum(kept.values())


def _free_bytes(device: torch.device, read: list[Tensor]) -> float:
    """Return the bytes that a batch may take, beside the dataset's tensors `read`, which move to a GPU in training."""
    if device.type != "cuda":
        return free_memory()
    return max(0.0, torch.cuda.mem_get_info(device)[0] - float(sum(tensor.nbytes for tensor in read)))


class Estimate:
    """Tells once, a few updates after the start, how long a training takes; beyond half an hour it is a warning.

    Args:
        updates: that are left. advice: what makes it shorter.
    """

    def __init__(self, updates: int, *, advice: str) -> None:
        self.left, self.advice, self.seen, self.began = updates, advice, 0, 0.0

    def update(self) -> None:
        """Count one update; the first one, which prepares much, is not timed."""
        self.seen += 1
        if self.seen == 1:
            self.began = time.perf_counter()
        elif self.seen == 1 + _TIMED and not ranks.rank():
            self._tell((time.perf_counter() - self.began) / _TIMED)

    def _tell(self, each: float) -> None:
        """Print or log the estimate, from the seconds of one update."""
        minutes = each * self.left / 60
        shown = f"{minutes / 60:.1f} hours" if minutes >= 60 else f"{max(1, round(minutes))} minutes"
        text = f"This training will take about {shown}: {self.left} updates of {each:.2g} s."
        if minutes * 60 > LONG_S:
            _log.warning("%s %s", text, self.advice)
        elif minutes >= 1:
            print(text)


def advice(policy: Policy, device: torch.device) -> str:
    """Return what makes a training of `policy` on `device` shorter."""
    means = ["Fewer loop.steps", "a smaller loop.batch_size"]
    means += ["smaller pictures"] if policy.spec.reads_pictures else []
    means += ["a GPU (device=cuda)"] if device.type == "cpu" else []
    return f"{', '.join(means[:-1])} or {means[-1]} help."
