"""An operator's console for a policy node: sign of life, life cycle and diagnostics, by lines that are typed.

    python -m robopolicy.real.ros2.operator_console --wiring my_arm.yaml [--ros-args -r __ns:=/cell1]

enable      publish `enable` from now on, at the wiring's rate; the node needs it to move
stop        publish false: a FAULT at once, whatever word is being carried out; words that wait are dropped
configure, activate, deactivate, cleanup    the node's life cycle
reset       after a FAULT, once the arm stands and `enable` is published again
status      mode, reasons, limits, ages of data
quit        fall silent: an arm that runs faults. So do Ctrl-C, the end of the input and a closed terminal

It shows every change of mode. It is no emergency stop: that is hardwired.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue

from robopolicy.core.errors import RobopolicyError, closest
from robopolicy.real.ros2.episode_client import EpisodeClient
from robopolicy.real.ros2.policy_node import NAME
from robopolicy.real.ros2.spin import start
from robopolicy.real.ros2.wiring import load_wiring
from robopolicy.real.safety import SafetyError

AT_ONCE = ("enable", "stop", "quit", "exit", "q")  # the others may wait minutes for a service
SHOWN = ("state", "mode", "message", "reasons_now", "limits", "driver", "step", "ages_ms", "bystanders", "claims")


class Console:
    """Carry out an operator's lines.

    Args:
        operator: of the node; silent until `enable`.
        say: shows a text.
    """

    def __init__(self, operator: EpisodeClient, say: Callable[[str], None] = print) -> None:
        self.operator, self.say = operator, say
        self.last = ""
        moves = ("configure", "activate", "deactivate", "cleanup")
        self.words: dict[str, Callable[[], str]] = {
            "enable": self._enable, "stop": self._stop, "reset": self._reset, "status": self.status,
            **{name: lambda name=name: self._transition(name) for name in moves},  # type: ignore[misc]
        }  # fmt: skip

    def listen(self, lines: Iterable[str]) -> None:
        """Carry out lines until `quit` or their end, one after another; those of AT_ONCE never wait."""
        waiting = SimpleQueue[str | None]()
        worker = threading.Thread(target=self._work, args=(waiting,), daemon=True)
        worker.start()
        for line in lines:
            word = line.strip()
            if word not in AT_ONCE:
                waiting.put(word)
            elif not self.take(word):
                return
            if word == "stop" and (dropped := _drain(waiting)):
                self.say(f"dropped: {', '.join(dropped)}")
        waiting.put(None)
        worker.join()

    def _work(self, waiting: SimpleQueue[str | None]) -> None:
        for word in iter(waiting.get, None):
            try:
                self.take(word)
            except Exception as error:  # a console that obeys no more must not go on to enable
                self.operator.fall_silent()
                self.say(f"{word}: {type(error).__name__}: {error}. Fell silent; start the console again")
                return

    def take(self, line: str) -> bool:
        """Carry out a line; False where it says to quit."""
        word = line.strip()
        if word in ("quit", "exit", "q"):
            return False
        if word and word not in self.words:
            self.say(f"{word!r}: no such word. {closest(word, [*self.words, 'quit'])}")
        elif word:
            try:
                self.say(self.words[word]())
            except RobopolicyError as error:
                self.say(f"{word}: {error}" if not str(error).startswith(word) else str(error))
        return True

    def status(self) -> str:
        """Return the node's newest diagnostics."""
        values = self.operator.status.get(self.operator.node_name)
        if values is None:
            return f"nothing has come on {self.operator.wiring.topic('diagnostics').name!r}; is the node running?"
        return "\n".join(f"{key}: {values[key]}" for key in SHOWN if values.get(key))

    def changed(self) -> str:
        """Return mode and message where they are others than at the last call, else ""."""
        values = self.operator.status.get(self.operator.node_name, {})
        now = " ".join(filter(None, (values.get("state", ""), values.get("mode", ""), values.get("message", ""))))
        fresh, self.last = (now if now != self.last else ""), now
        return fresh

    def _enable(self) -> str:
        self.operator.enable()
        return "enable is published"

    def _stop(self) -> str:
        self.operator.emergency_stop()
        return "false is published"

    def _reset(self) -> str:
        if why := self.operator.reset_fault():
            raise SafetyError(why)
        return "running"

    def _transition(self, name: str) -> str:
        self.operator.transition(name)
        return f"{name}: done"


def _drain(waiting: SimpleQueue[str | None]) -> list[str]:
    """Take all that waits out of the queue, and return it."""
    found = list[str]()
    with suppress(Empty):
        while True:
            found.append(waiting.get_nowait() or "")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wiring", required=True)
    parser.add_argument("--node", default=NAME, help="name of the policy node, in the console's namespace")
    args, rest = parser.parse_known_args()
    start(rest)
    with EpisodeClient(load_wiring(args.wiring), node_name=args.node, silent=True) as operator:
        console, ended = Console(operator, lambda text: print(text, flush=True)), threading.Event()

        def watch() -> None:
            while not ended.wait(0.1):
                if text := console.changed():
                    print(f"[{text}]", flush=True)

        threading.Thread(target=watch, daemon=True).start()
        with suppress(KeyboardInterrupt):
            console.listen(sys.stdin)
        ended.set()


if __name__ == "__main__":
    main()
