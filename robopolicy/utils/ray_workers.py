"""Run workers as Ray actors: on a cluster that RAY_ADDRESS names, else on one that Ray starts on this machine.

Ray's ports listen on all interfaces, and run the code of everyone who may use them. A cluster that is started here
asks for a token, which its own processes alone know.
"""

from __future__ import annotations

import os
import platform
import secrets
import sys
from collections import deque
from typing import Any

from robopolicy.core.errors import ConfigError, WorkerError
from robopolicy.utils.install_commands import pip_install
from robopolicy.utils.worker_process import Host, Lost

_STORE = 200 * 2**20  # bytes of Ray's store of objects, which a farm hardly uses


class RayHost(Host):
    """A Host in an actor."""

    def hello(self) -> tuple[bool, Any]:
        fine, found = super().hello()
        return fine, {**found, "place": f"{found['place']} on {platform.node()}"}


class RayWorker:
    """An actor that holds a Host, see utils.worker_process.Worker."""

    def __init__(self, number: int, timeout: float) -> None:
        self.ray = start_ray("task.farm=ray", instead="task.farm=process")
        actor = self.ray.remote(RayHost)
        # Envs wait for one another, so an actor claims no core: those of a second env would wait for ever.
        self.actor = actor.options(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD").remote()
        self.asked: deque[Any] = deque()
        self.send("hello")

    def send(self, method: str, *arguments: Any) -> None:
        """See Worker. Raises what pickling raises."""
        self.asked.append(getattr(self.actor, method).remote(*arguments))

    def answer(self, wait_s: float) -> tuple[bool, Any] | None:
        """See Worker."""
        errors = self.ray.exceptions
        try:
            found = self.ray.get(self.asked[0], timeout=wait_s)
        except errors.GetTimeoutError:
            return None
        except errors.RayTaskError as error:  # the arguments cannot be read there
            found = False, str(error)
        except errors.RayError as error:
            raise Lost(f"died ({str(error).strip().partition(chr(10))[0]})") from None
        self.asked.popleft()
        return found

    def leave(self) -> None:
        """See Worker; Ray ends an actor at once."""

    def stop(self, *, wait_s: float = 0.0) -> None:
        """See Worker."""
        if self.ray.is_initialized():  # at the end of the program Ray ends first
            self.ray.kill(self.actor)


def start_ray(setting: str, *, instead: str) -> Any:
    """Return the module `ray`, connected to a cluster.

    Args:
        setting: asked for Ray. instead: needs no Ray; both for messages.

    Raises:
        ConfigError: Ray is not installed. WorkerError: it does not start, or does not let this program in.
    """
    own = "RAY_ADDRESS" not in os.environ
    if own and "ray" not in sys.modules:  # Ray reads this when it is imported
        os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default: other programs would stop ours
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"{setting}: Ray cannot be imported ({error}). Choose {instead}, or install it: "
            f"{pip_install('robopolicy[ray]')}"
        ) from None
    if not ray.is_initialized():
        # "local": not the cluster of a `ray start` on this machine
        how = {"address": "local", "include_dashboard": False, "object_store_memory": _STORE} if own else {}
        try:
            ray.init(log_to_driver=False, configure_logging=False, **how)
        except Exception as error:  # any error of a start that takes several processes
            raise WorkerError(
                f"{setting}: Ray does not {'start here' if own else 'answer at RAY_ADDRESS'} "
                f"({type(error).__name__}: {error}). {instead} needs no Ray."
            ) from error
    return ray
