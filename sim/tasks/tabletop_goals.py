"""Goals of the tabletop task, and the sentences that instruct them."""

from __future__ import annotations

COLOURS = {"red": "0.8 0.15 0.15 1", "green": "0.15 0.6 0.2 1", "blue": "0.15 0.3 0.85 1"}
GOALS = (*(f"pick_{c}" for c in COLOURS), *(f"push_{c}" for c in COLOURS), "press")
CUBES = len(COLOURS)
PRESS = len(GOALS) - 1

# Sentences of each goal. Policies for unseen wordings learn from "varied"; "unseen" has other sentences, mostly of the
# same words.
SENTENCES: dict[str, dict[str, tuple[str, ...]]] = {
    "plain": {
        "pick": ("pick up the {} cube",),
        "push": ("push the {} cube away",),
        "press": ("press the button",),
    },
    "varied": {
        "pick": ("pick up the {} cube", "lift the {} cube", "grab the {} block and raise it", "take the {} block"),
        "push": ("push the {} cube away", "shove the {} cube forward", "slide the {} block away",
                 "move the {} block forward"),
        "press": ("press the button", "push the button down", "hit the button", "press the white button"),
    },
    "unseen": {
        "pick": ("raise the {} block", "take the {} cube and lift it"),
        "push": ("slide the {} cube forward", "move the {} block away from you"),
        "press": ("push down the white button", "hit the white button"),
    },
}  # fmt: skip
