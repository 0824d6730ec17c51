"""Know which ranks of a training live: each leaves signs of life in torchrun's store."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from robopolicy.core.errors import RankError

BEAT_S = 1.0  # a rank says so often that it lives
_SILENT_S = 3.0  # a rank that is silent for so long has ended
_BUSY_S = 30.0  # the same while it works alone, which may keep its thread of signs from running
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # of the environment
_NETWORK = (
    "On several machines, set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface between them "
    "(`ip -br address` lists it): some systems give their own name a loopback address."
)


class RankGroup:
    """The ranks of this training, and the signs of life that they leave in torchrun's store.

    Args:
        timeout: seconds to wait for the store. beats: leave signs of life until `end`.

    Raises:
        RankError: the store does not answer, or the environment lacks a variable.
    """

    def __init__(self, timeout: float, *, beats: bool = True) -> None:
        store, self.rank, self.count = _store(timeout)
        # torchrun keeps its store over --max-restarts: keys of the attempt that died must not be read. On several
        # machines each counts its own restarts, so that ranks do not meet there (docs/gpu.md).
        self.store = dist.PrefixStore(f"attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        self.calls, self.works, self.ended = 0, 0, threading.Event()
        self.thread: threading.Thread | None = None
        if beats:
            with suppress(RuntimeError):  # the store has ended: `meet` says so
                self.sign(str(self.calls))
            self.thread = threading.Thread(target=self._live, daemon=True)
            self.thread.start()

    def end(self) -> None:
        """Stop the signs of life. Python would abort if it ended while the thread waits for the store's answer."""
        self.ended.set()
        if self.thread is not None:
            self.thread.join(timeout=_SILENT_S)

    def sign(self, text: str) -> None:
        self.store.set(f"rank/{self.rank}", f"{time.monotonic()} {text}")

    def sign_end(self, error: BaseException) -> None:
        """Tell the others that this rank has ended."""
        with suppress(RuntimeError):  # the store may have ended too
            self.sign(f"ended by {type(error).__name__}: {str(error).partition(chr(10))[0][:300]}")

    def _live(self) -> None:
        with suppress(RuntimeError):  # the store has ended
            while not self.ended.wait(BEAT_S):
                self.sign(str(self.calls))

    def signs(self) -> list[str]:
        """Return the newest sign of each rank; empty: it never came."""
        return [self.store.get(key).decode() if self.store.check([key]) else "" for key in self._keys]

    @property
    def _keys(self) -> list[str]:
        return [f"rank/{rank}" for rank in range(self.count)]

    def meet(self, timeout: float) -> None:
        """Wait for the first sign of every rank.

        Raises:
            RankError: a rank ended before it came, or did not come within `timeout` seconds.
        """
        limit = time.monotonic() + timeout

        def all_came() -> bool:
            if any(_has_ended(sign) for sign in self.signs()) or time.monotonic() > limit:
                raise RuntimeError("ranks are missing")
            return self.store.check(self._keys)

        self._wait(all_came)

    def wait_for_first(self, key: str) -> None:
        """Wait until rank 0 has set `key`, while it lives.

        Raises:
            RankError: rank 0 ended, or is silent.
        """
        sign, heard = "", time.monotonic()

        def done() -> bool:
            nonlocal sign, heard
            if self.store.check([key]):
                return True
            if (now := self.signs()[0]) != sign:
                sign, heard = now, time.monotonic()
            if _has_ended(sign) or time.monotonic() - heard > _BUSY_S:
                raise RuntimeError("rank 0 works alone")
            return False

        self._wait(done)

    def _wait(self, done: Callable[[], bool]) -> None:
        try:
            while not done():
                time.sleep(BEAT_S / 5)
        except RuntimeError as error:
            raise self.failure(error) from error

    def failure(self, error: BaseException) -> RankError:
        """Say which ranks are missing, from their signs of life."""
        reason, missing = str(error).partition("\n")[0], []
        try:
            first = self.signs()
            time.sleep(_SILENT_S)
            second = self.signs()
        except RuntimeError:
            return RankError(f"rank {self.rank} of {self.count} cannot go on: rank 0 or torchrun has ended ({reason}).")
        for rank, (before, now) in enumerate(zip(first, second, strict=True)):
            reached = now.partition(" ")[2]
            if _has_ended(now):
                missing.append(f"rank {rank} {reached}")
            elif before == now and rank != self.rank:
                missing.append(f"rank {rank} {'is silent: killed, or its machine is lost' if now else 'never came'}")
            elif reached and int(reached) < self.calls:
                missing.append(f"rank {rank} did not come to exchange {self.calls}: it is busy with exchange {reached}")
        found = "; ".join(missing) or f"a connection was lost ({reason})"
        return RankError(
            f"rank {self.rank} of {self.count} cannot go on: {found}. The same command goes on from the newest "
            f"checkpoint; rank_timeout= is how long ranks wait for one another.{'' if missing else f' {_NETWORK}'}"
        )


def store_answers(timeout: float) -> bool:
    """Return whether something listens where the store is to be; torch itself tries for minutes."""
    try:
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        with socket.create_connection(place, timeout=timeout):
            return True
    except (KeyError, ValueError, OSError):
        return False


def _has_ended(sign: str) -> bool:
    return sign.partition(" ")[2].startswith("ended")


def _store(timeout: float) -> tuple[dist.Store, int, int]:
    """Return torchrun's store, the rank of this process and the number of ranks."""
    for name in _NEEDED:
        if not os.environ.get(name):
            given = ", ".join(other for other in _NEEDED if os.environ.get(other))
            raise RankError(
                f"{name}: expected beside {given} in the environment, found none. Start ranks by torchrun, which sets "
                "all four, or set it too."
            )
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        return next(dist.rendezvous("env://", timeout=timedelta(seconds=timeout)))
    except ValueError as error:
        raise RankError(f"{', '.join(_NEEDED)}: cannot be used ({error}). Start ranks by torchrun.") from error
    except RuntimeError as error:
        raise RankError(
            f"rank {os.environ['RANK']}: no answer from {where} in {timeout:.0f} s. Look at --rdzv-endpoint and at the "
            f"firewall. {_NETWORK}"
        ) from error
