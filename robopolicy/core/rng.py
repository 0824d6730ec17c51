"""Draw noise and seeds from keys, independently of the order of draws.

Every random number that shapes an episode is a pure function of (key, counter): the episode seed and the
primitive step. So an episode's outcome does not depend on N, on its neighbours or on other consumers of
random numbers. Philox-4x32-10 (Salmon et al., SC 2011) in int64 tensor arithmetic: the same on CPU and GPU.
"""

from __future__ import annotations

import logging
import math
import operator
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from robopolicy.core.errors import ConfigError

_log = logging.getLogger(__name__)
_MASK = 0xFFFFFFFF
_BELOW_ONE = 1.0 - 2.0**-24  # largest float32 below 1
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85

Split = Literal["demonstrations", "validation", "test", "train"]
SPLITS: dict[Split, int] = {"demonstrations": 0, "validation": 1, "test": 2, "train": 3}  # number in the seed
SPLIT_BITS = 40  # seeds per split: 2^40; the splits are disjoint ranges of int64


def _mulhilo(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    # The 64-bit product of two 32-bit numbers wraps into int64's sign bit; the masks undo that.
    product = a * b
    return (product >> 32) & _MASK, product & _MASK


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> Tensor:
    """Compute Philox-4x32-10 of int64 tensors that hold 32-bit words and broadcast; returns words [... 4]."""
    c0, c1, c2, c3 = torch.broadcast_tensors(*counter)
    k0, k1 = key
    for _ in range(10):
        hi0, lo0 = _mulhilo(_M0, c0)
        hi1, lo1 = _mulhilo(_M1, c2)
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return torch.stack([c0, c1, c2, c3], dim=-1)


def keyed_uniform(seed: Tensor, step: Tensor, shape: tuple[int, ...], *, stream: int = 0) -> Tensor:
    """Draw uniform float32 numbers in (0, 1), [B *shape], from int64 `seed` [B] and `step` [B].

    `stream` separates consumers that share seeds and steps (a policy, its base, sensor noise …).
    """
    words = _words(seed, step, math.prod(shape), stream)
    unit = ((words >> 8).to(torch.float32) + 0.5).mul_(2.0**-24)
    # The largest sum, 2^24 - 0.5, rounds to 2^24 in float32.
    return unit.clamp_max_(_BELOW_ONE).reshape(seed.shape[0], *shape)


def keyed_normal(seed: Tensor, step: Tensor, shape: tuple[int, ...], *, stream: int = 0) -> Tensor:
    """Draw standard normal float32 numbers [B *shape], keyed like `keyed_uniform` (Box–Muller on pairs of words)."""
    count = math.prod(shape)
    words = _words(seed, step, count + count % 2, stream)
    uniform = ((words >> 8).to(torch.float32) + 0.5).mul_(2.0**-24)
    radius = uniform[:, 0::2].log().mul_(-2.0).sqrt_()
    angle = uniform[:, 1::2] * (2.0 * math.pi)
    normal = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1).flatten(1)
    return normal[:, :count].reshape(seed.shape[0], *shape)


def _words(seed: Tensor, step: Tensor, count: int, stream: int) -> Tensor:
    blocks = torch.arange((count + 3) // 4, device=seed.device, dtype=torch.int64)
    zero = torch.zeros_like(blocks)
    key = ((seed & _MASK)[:, None], ((seed >> 32) & _MASK)[:, None])
    counter = (blocks, (step & _MASK)[:, None], zero + stream, zero)
    return philox(counter, key).flatten(1)[:, :count]


def listed_seeds(split: Split, count: int, *, most: int, what: str) -> Tensor:
    """Return the first `count` numbers of a split, int64, for `what`, whose episodes are a list of `most` starts.

    Raises:
        ConfigError: validation episodes, or more than there are: they would be the same ones again.
    """
    if split != "test" or count > most:
        raise ConfigError(
            f"{what}: its episodes are a fixed list of {most} initial states, all of them its test; found "
            f"split={split}, episodes={count}. Take split=test and at most episodes={most}."
        )
    return (SPLITS[split] << SPLIT_BITS) + torch.arange(count)


def episode_seeds(split: Split, run_seed: int, count: int, *, start: int = 0) -> Tensor:
    """Return int64 [count] episode seeds of a split: number `start`, `start`+1, … of the run's own stream.

    The splits are disjoint ranges: evaluation never meets a training episode, and reinforcement learning does not
    begin with the starts of its demonstrations, where their imitator succeeds more often than elsewhere. Validation
    and test seeds do not depend on `run_seed` unless it is given: pass 0 to pair runs with one another.
    """
    if split not in SPLITS:
        raise ConfigError(f"split must be one of {sorted(SPLITS)}, found {split!r}")
    try:
        run_seed = operator.index(run_seed)
    except TypeError:
        raise ConfigError(f"seed: expected an int, found {run_seed!r}") from None
    if not -(2**63) <= run_seed < 2**63:
        raise ConfigError(f"seed: expected an int of 64 bits, found {run_seed}")
    if count < 0:
        raise ConfigError(f"episodes: expected 0 or more, found {count}")
    index = torch.arange(start, start + count, dtype=torch.int64)
    words = philox((index & _MASK, index >> 32, index * 0 + SPLITS[split], index * 0), _key(run_seed, index))
    low = (words[..., 0] | (words[..., 1] << 32)) & ((1 << SPLIT_BITS) - 1)
    return low | (SPLITS[split] << SPLIT_BITS)


def unused_seed() -> int:
    """Return a random seed of the split "train", for an episode of a real arm: no seed decides how it begins.

    Data is held out by its seeds, so no two episodes should have the same.
    """
    return SPLITS["train"] << SPLIT_BITS | secrets.randbits(SPLIT_BITS)


def _key(seed: int, like: Tensor) -> tuple[Tensor, Tensor]:
    word = torch.full_like(like, seed)
    return word & _MASK, (word >> 32) & _MASK


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the global generators that `device` draws from (`torch.manual_seed` costs 0.1 ms, this 1 µs)."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


@contextmanager
def kept_generators(*places: nn.Module | torch.device) -> Iterator[None]:
    """Restore the global generators that modules or devices draw from after the block; other GPUs are not touched."""
    devices = {place for place in places if isinstance(place, torch.device)}
    devices |= {p.device for place in places if isinstance(place, nn.Module) for p in place.parameters()}
    with torch.random.fork_rng(sorted((d for d in devices if d.type == "cuda"), key=str)):
        yield


def generator_state() -> dict[str, Any]:
    """Return the state of the global generators, which for example dropout draws from."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"torch": torch.get_rng_state(), "cuda": cuda}


def restore_generators(state: dict[str, Any]) -> None:
    """Restore what `generator_state` returned, on as many GPUs as there are; a warning says where bits may differ."""
    torch.set_rng_state(state["torch"])
    before, now = len(state["cuda"]), torch.cuda.device_count()
    for device, own in zip(range(now), state["cuda"], strict=False):
        torch.cuda.set_rng_state(own, device)
    if before and now and before != now:
        _log.warning(
            "The checkpoint was saved where %d GPUs were visible; now there are %d. Random numbers on GPUs may differ, "
            "so the result may not equal that of an uninterrupted run bit for bit.", before, now,
        )  # fmt: skip


def normal_like(x: Tensor) -> Tensor:
    """Draw standard normal numbers in the shape of a training batch x [B ...], see `draw_rows`."""
    return draw_rows(lambda rows: torch.randn(rows, *x.shape[1:], device=x.device, dtype=x.dtype), len(x))


_part: tuple[slice, int] | None = None  # rows of the batch that is learned here, and its whole number of rows


@contextmanager
def part_of_batch(rows: slice, whole: int) -> Iterator[None]:
    """Let `draw_rows` draw for a batch of `whole` rows of which only `rows` are learned here, see utils.ranks."""
    global _part
    _part = (rows, whole)
    try:
        yield
    finally:
        _part = None


def draw_rows(draw: Callable[[int], Tensor], rows: int) -> Tensor:
    """Draw random numbers [rows ...] by `draw` (number of rows → [rows ...]).

    Inside `part_of_batch` they are drawn for the whole batch, and this process takes its own: so they do not depend on
    the number of ranks. There may be several rows, side by side, of each row of the batch.
    """
    if _part is None:
        return draw(rows)
    own, whole = _part
    each = rows // (own.stop - own.start)
    return draw(whole * each)[own.start * each : own.stop * each]


def step_seed(seed: int, step: int, *, stream: int = 0) -> int:
    """Return a 63-bit seed for one step of one stream; neighbouring steps and seeds give unrelated ones."""
    x = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + stream * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = ((x ^ (x >> 33)) * multiplier) & 0xFFFFFFFFFFFFFFFF  # MurmurHash3's finaliser
    return (x ^ (x >> 33)) >> 1
