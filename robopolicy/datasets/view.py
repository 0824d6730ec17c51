"""Open LeRobot's viewer of a dataset (`robopolicy data view`)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from robopolicy.config.schema import Natural
from robopolicy.core.errors import ConfigError, DataError
from robopolicy.utils.install_commands import pip_install


def data_view(*, dataset: Path, episode: Natural = 0, save: Path | None = None) -> None:
    """Show an episode in rerun, LeRobot's viewer: pictures, states, actions, rewards.

    Args:
        dataset: a LeRobotDataset v3.
        episode: its number.
        save: folder for a .rrd file, to open elsewhere by `rerun <file>`; None: open a window.

    Raises:
        ConfigError: rerun is not installed.
        DataError: no dataset of format v3, or no such episode.
    """
    if importlib.util.find_spec("rerun") is None:
        fix = pip_install("lerobot[viz]")
        raise ConfigError(f"data view: needs LeRobot's viewer, rerun, which is not installed. Install it: {fix}")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.scripts.lerobot_dataset_viz import visualize_dataset

    from robopolicy.datasets.source import DatasetInfo

    count = DatasetInfo.open(dataset).info.total_episodes
    if episode >= count:
        raise DataError(f"episode={episode}: {dataset} has {f'episodes 0 to {count - 1}' if count else 'no episodes'}")
    opened = LeRobotDataset(f"local/{dataset.resolve().name}", root=dataset, episodes=[episode])
    file = visualize_dataset(opened, episode, save=save is not None, output_dir=save)
    if file is not None:
        print(f"{file}: open it by `rerun {file}`")
