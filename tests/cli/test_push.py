"""`robopolicy push`, against a hub on this machine that keeps files and gives them back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from robopolicy.cli.main import main
from robopolicy.cli.push import push
from robopolicy.core.errors import CheckpointError, ConfigError, DataError, RobopolicyError
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.evaluation.policy_ref import PolicyRef
from robopolicy.policies.io import load_policy
from robopolicy.runs.checkpointer import Checkpointer
from tests.hub import Hub, serving
from tests.runs.test_checkpointer import gaussian


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(tmp_path, monkeypatch) as kept:
        yield kept


def test_a_policy_comes_back_from_the_hub_as_it_was(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Checkpointer(tmp_path / "run").save(1, policy=gaussian(0), state={})
    push(source=tmp_path / "run", repo="me/pick")
    assert "exported" not in capsys.readouterr().out, "no path of a folder that is gone by then"
    kept = hub.files["models/me/pick"]
    assert hub.private == {"models/me/pick": True} and not hub.tags
    assert json.loads(kept["config.json"])["type"] == "robopolicy" and b"hub:me/pick" in kept["README.md"]
    assert not any(str(tmp_path).encode() in data for data in kept.values()), "no path of this machine goes out"
    weights = load_policy("hub:me/pick").state_dict()
    assert all(torch.equal(weights[k], v) for k, v in gaussian(0).state_dict().items())
    with pytest.raises(ConfigError, match=r"hub:me/pick: is of the hub; say with out="):
        PolicyRef.of(Path("hub:me/pick"), "latest", None)
    assert PolicyRef.of(Path("hub:me/pick@main"), "latest", tmp_path / "out").name == "pick"


def test_a_dataset_comes_back_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert main(["demos", "task=reach", f"out={data}", "episodes=2", "num_envs=2"]) == 0
    (data / "notes.json").write_text('{"mine": "alone"}')
    assert main(["push", f"source={data}", "repo=me/reach", "private=false"]) == 0
    assert hub.private == {"datasets/me/reach": False} and hub.tags == ["v3.0"]
    assert {name.partition("/")[0] for name in hub.files["datasets/me/reach"]} == {"data", "meta"}, "nothing beside it"
    assert main(["data", "import", "dataset=hub:me/reach", f"out={tmp_path / 'back'}"]) == 0
    assert torch.equal(load_episodes(tmp_path / "back").action, load_episodes(data).action)


def test_refused_before_anything_is_sent(hub: Hub, tmp_path: Path) -> None:
    Checkpointer(tmp_path / "run").save(1, policy=gaussian(0), state={})
    for name in ("pick", "me/a/b", "../x", "me/.."):
        with pytest.raises(ConfigError, match=r"repo=.*: expected <owner>/<name>"):
            push(source=tmp_path / "run", repo=name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="no policy here"):
        push(source=tmp_path / "empty", repo="me/pick")
    data = tmp_path / "data"
    assert main(["demos", "task=reach", f"out={data}", "episodes=2", "num_envs=2"]) == 0
    (tmp_path / "secret.json").write_text("{}")
    (data / "meta" / "more.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises((CheckpointError, DataError), match="link"):
        push(source=data, repo="me/data")
    (data / "meta" / "more.json").unlink()
    (data / "meta" / "tasks.parquet").write_bytes(b"")
    with pytest.raises(DataError):
        push(source=data, repo="me/data")
    assert not hub.files


def test_a_hub_that_refuses_is_named(hub: Hub, tmp_path: Path) -> None:
    hub.closed = True
    Checkpointer(tmp_path / "run").save(1, policy=gaussian(0), state={})
    with pytest.raises(RobopolicyError, match=r"repo=me/pick: could not be pushed \(.*401.*hf auth login"):
        push(source=tmp_path / "run", repo="me/pick")
