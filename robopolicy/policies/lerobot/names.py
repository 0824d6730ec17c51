"""Which language models and tokenizers a policy of LeRobot may name. None of them brings code of its own."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from robopolicy.core.errors import CheckpointError
from robopolicy.core.untrusted import read_json
from robopolicy.utils.storage import refuse_pickle

HUB = {  # LeRobot's own defaults, and their siblings of other sizes: no repository of these holds code
    "HuggingFaceTB/SmolVLM-256M-Instruct", "HuggingFaceTB/SmolVLM-500M-Instruct", "HuggingFaceTB/SmolVLM-Instruct",
    "HuggingFaceTB/SmolVLM2-256M-Video-Instruct", "HuggingFaceTB/SmolVLM2-500M-Video-Instruct",
    "HuggingFaceTB/SmolVLM2-2.2B-Instruct", "google/paligemma-3b-pt-224",
}  # fmt: skip
# Keys by which transformers finds code, kernels or a second model elsewhere.
_LEADS_ON = {"auto_map", "custom_pipelines", "attn_implementation", "_attn_implementation", "experts_implementation",
             "_experts_implementation", "quantization_config", "base_model_name_or_path"}  # fmt: skip


def refuse_remote_code() -> None:
    """Let transformers raise where it would ask "run the custom code? [y/N]", in this process from now on.

    Never set back: a loader in another thread would ask again.
    """
    if importlib.util.find_spec("transformers") is not None:
        from transformers import dynamic_module_utils

        dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0


def check_name(name: Any, where: str) -> None:
    """Check a name that transformers is to load: one of `HUB`, or a directory of data.

    A directory may lie anywhere: all that is read of it is data.

    Raises:
        CheckpointError: another name, or a directory that holds code, a pickle or a key that leads to code.
    """
    if not isinstance(name, str):
        raise CheckpointError(f"{where}: expected a name of the hub or a directory, found {name!r}")
    if os.path.isdir(name):  # first, as transformers does: such a folder hides the hub's repository
        _check_folder(Path(name), where)
    elif name not in HUB:
        raise CheckpointError(
            f"{where}: {name[:200]!r} is not taken from the hub: it may bring code of its own. Known: "
            f"{', '.join(sorted(HUB))}. Of others, download the repository, look into it, and name its directory here."
        )


def _check_folder(folder: Path, where: str) -> None:
    for file in sorted(folder.iterdir()):
        if file.is_dir():
            continue
        if file.suffix == ".py" or file.name == "adapter_config.json":
            raise CheckpointError(f"{where}: {file} is there; expected a directory of data alone, without code")
        refuse_pickle(file)
        if file.suffix == ".json" and "config" in file.name and (key := _key(read_json(file))):
            raise CheckpointError(f"{where}: {file}: {key}: may lead to code elsewhere. Expected a file without it.")


def _key(document: Any) -> str | None:
    left = [document]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            if found := [key for key, value in part.items() if key in _LEADS_ON and value is not None]:
                return found[0]
            left += part.values()
        elif isinstance(part, list):
            left += part
    return None
