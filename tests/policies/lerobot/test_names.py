"""A directory that transformers is to load from holds data alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from robopolicy.core.errors import CheckpointError
from robopolicy.policies.lerobot.names import _LEADS_ON, check_name

LED = [{"config.json": {"layers": [{key: "x"}]}} for key in sorted(_LEADS_ON)]


@pytest.mark.parametrize(
    "files",
    [{"modeling.py": {}}, {"adapter_config.json": {}}, {"weights.bin": {}}, {"tokenizer_config.json": LED[0]}, *LED],
)
def test_a_directory_that_leads_to_code_is_refused(files: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"layers": [{"size": 3}]}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    check_name(str(tmp_path), "vlm_model_name")
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=f"vlm_model_name|{next(iter(files))}"):
        check_name(str(tmp_path), "vlm_model_name")


@pytest.mark.parametrize("name", ["stranger/model", 3, None])
def test_another_name_is_refused(name: object) -> None:
    with pytest.raises(CheckpointError, match="vlm_model_name"):
        check_name(name, "vlm_model_name")
