"""Record LeRobotDataset v3 by LeRobot's own class, with checks, atomic replacement and further columns."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robopolicy.core.errors import DataError, closest
from robopolicy.core.types import ENV_STATE, IMAGES, STATE, TASK, ActionSpec, Feature
from robopolicy.datasets.interrupts import hold_interrupts, interrupt_at_end
from robopolicy.datasets.lerobot_compat import check_column, lerobot_feature, skip_image_embedding
from robopolicy.datasets.metadata import SEED, RecordingMeta, check_free, recorded
from robopolicy.datasets.recording_folder import RecordingFolder, clear_killed

OUTCOME = {"next.reward": "float32", "next.done": "bool", "next.truncated": "bool", "next.success": "bool"}
_CRF = 20  # video quality of LeRobot's default codec (AV1); lower is better, LeRobot's own default is 30
_SPARE = 16 * 2**20  # bytes that stay free for LeRobot's files at the end of a recording
_log = logging.getLogger(__name__)


class DatasetWriter:
    """Write whole episodes to a hidden folder beside `path`, and move the dataset to `path` at the end.

    Use it as a context manager. Finished episodes are kept also after Ctrl-C, SIGTERM, SIGHUP or an error
    (`RecordingMeta.complete` is then False). Without a finished episode, nothing appears at `path`.

    Columns: the observation keys, `action`, `next.reward`, `next.done` (the episode ended), `next.truncated` (a time
    limit ended it), `next.success`, `episode_seed`, and LeRobot's own (`timestamp`, `task_index` …). Without images the
    state is stored as `observation.environment_state` too, which LeRobot's ACT and Diffusion need.

    Args:
        path: the dataset's directory.
        observation: features without `task_index`, which LeRobot stores as text; images uint8 (3, h, w) become video.
        action, dt, tasks: as in the env's spec; 1/dt must be a whole number, as LeRobot counts frames per second.
        provenance: goes into `meta/robopolicy.json`; `writer.meta.provenance` may be added to while recording.
        marks: further columns about each frame that no policy observes, e.g. `intervention`.
        overwrite: replace a dataset at `path`, once the new one is complete.
        begun: episodes of an interrupted recording at `path` that this one repeats, else 0. It is replaced when
            this recording is complete or has more episodes.

    Raises:
        DataError: `path` is not free, see check_free; 1/dt is not whole, a feature that LeRobot cannot store.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        observation: Mapping[str, Feature],
        action: ActionSpec,
        dt: float,
        tasks: tuple[str, ...],
        provenance: Mapping[str, Any] | None = None,
        marks: Mapping[str, Feature] | None = None,
        overwrite: bool = False,
        begun: int = 0,
    ) -> None:
        self.path, self.begun, self.overwrite = Path(path), begun, overwrite
        clear_killed(self.path)
        check_free(self.path, replaced=self._replaces())
        fps = round(1.0 / dt) if dt > 0 and math.isfinite(1.0 / dt) else 0
        if not abs(fps * dt - 1.0) <= 1e-6:
            raise DataError(f"dt: LeRobot stores whole frames per second; expected 1/n seconds, found {dt}")
        self.observation = {k: f for k, f in observation.items() if k != TASK}
        self.marks = dict(marks or {})
        self.meta = RecordingMeta(
            action=action, dt=dt, tasks=tuple(tasks), observation=tuple(observation), provenance=dict(provenance or {})
        )
        self.num_episodes, self._signals = 0, ExitStack()
        self._broken: BaseException | None = None
        self._place = RecordingFolder(self.path)
        self._videos = [k for k in self.observation if k.startswith(IMAGES)]
        self._repeats_state = STATE in self.observation and not self._videos and ENV_STATE not in self.observation
        try:
            self._dataset = self._create(fps)
        except BaseException:  # an interrupt too: nothing was recorded
            self._place.remove()
            raise

    def _replaces(self) -> bool:
        return self.overwrite or (self.begun > 0 and recorded(self.path) == "part")

    def _create(self, fps: int) -> Any:
        from lerobot.configs import RGBEncoderConfig
        from lerobot.datasets.lerobot_dataset import LeRobotDataset

        features = {k: lerobot_feature(k, f) for k, f in {**self.observation, **self.marks}.items()}
        if self._repeats_state:
            features[ENV_STATE] = features[STATE]
        action = self.meta.action
        features["action"] = {"dtype": "float32", "shape": (action.dim,), "names": list(action.names)}
        features |= {k: {"dtype": d, "shape": (1,), "names": None} for k, d in {**OUTCOME, SEED: "int64"}.items()}
        video: dict[str, Any] = {}
        if self._videos:
            import av

            os.environ.setdefault("SVT_LOG", "1")  # the encoder greets on stderr once per episode otherwise
            av.logging.set_libav_level(av.logging.ERROR)
            # The queue holds any episode whole, so that LeRobot never drops a frame; one encoder thread per camera.
            video = {"streaming_encoding": True, "encoder_queue_maxsize": 1 << 20, "encoder_threads": 1}
            video["rgb_encoder"] = RGBEncoderConfig(crf=_CRF)
        return LeRobotDataset.create(
            repo_id=f"local/{self.path.name}",
            fps=fps,
            features=features,
            root=self._place.root,
            use_videos=bool(self._videos),
            metadata_buffer_size=100,
            **video,
        )

    def add_episode(
        self,
        *,
        obs: Mapping[str, ArrayLike],
        action: ArrayLike,
        reward: ArrayLike,
        success: ArrayLike,
        terminated: bool,
        task: str,
        seed: int,
        marks: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Append one finished episode of T frames.

        Args:
            obs: each observation key [T ...], frame t seen before action t; images uint8 [T 3 h w].
            action: [T Da] physical units, as executed.
            reward, success: [T], after action t.
            terminated: the task itself ended with the last action; False: a time limit cut it.
            task: the instruction, one of `tasks`.
            seed: episode seed.
            marks: each of the writer's marks [T ...].

        Raises:
            DataError: missing or unknown keys, wrong shapes, non-finite numbers, an unknown task, a disk almost full,
                one frame where there are cameras; nothing is written.
        """
        if self._broken is not None:
            raise DataError(f"{self.path}: cannot go on recording after {self._broken!r}")
        if task not in self.meta.tasks:
            raise DataError(f"task: no instruction {task!r}. {closest(task, self.meta.tasks)}")
        columns = self._columns(obs, action, reward, success, marks or {})
        length = len(columns["action"])
        if self._videos and length < 2:  # LeRobot has no statistics of one frame, and fails when it finishes
            raise DataError(f"{self.path}: an episode of one frame makes no video of {self._videos}. Leave it out.")
        if self._repeats_state:
            columns[ENV_STATE] = columns[STATE]
        columns["next.done"] = np.zeros((length, 1), dtype=bool)
        columns["next.done"][-1] = True
        columns["next.truncated"] = columns["next.done"] & (not terminated)
        columns[SEED] = np.full((length, 1), seed, dtype=np.int64)
        self._check_space(sum(v.nbytes for v in columns.values()))
        with hold_interrupts():
            try:
                with skip_image_embedding():
                    for t in range(length):
                        self._dataset.add_frame({**{k: v[t] for k, v in columns.items()}, "task": task})
                    self._dataset.save_episode()
            except BaseException as error:  # half of an episode is on disk: see close()
                self._broken = error
                raise
            self.num_episodes += 1

    def _check_space(self, size: int) -> None:
        """Raise DataError while the disk still has room: a file that a full disk cut off is unreadable."""
        free, needed = shutil.disk_usage(self._place.folder).free, size + _SPARE
        if free < needed:
            raise DataError(
                f"{self.path}: the disk is full: {free / 2**20:.0f} MiB are free, episode {self.num_episodes} may take "
                f"{needed / 2**20:.0f}. The episodes before it are kept. Free some space, then record again."
            )

    def _columns(
        self, obs: Mapping[str, ArrayLike], action: ArrayLike, reward: ArrayLike, success: ArrayLike,
        marks: Mapping[str, ArrayLike],
    ) -> dict[str, NDArray[Any]]:  # fmt: skip
        for key in self.observation:
            if key not in obs:
                raise DataError(f"episode {self.num_episodes}: {key!r} is missing. {closest(key, obs)}")
        extra = sorted(set(obs) - set(self.observation) - {TASK})
        if extra:
            raise DataError(f"episode {self.num_episodes}: {extra[0]!r} is not a feature of this dataset. "
                            f"{closest(extra[0], self.observation)}")  # fmt: skip
        if set(marks) != set(self.marks):
            raise DataError(f"episode {self.num_episodes}: expected marks {sorted(self.marks)}, found {sorted(marks)}")
        length = len(np.asarray(action))
        if not length:
            raise DataError(f"episode {self.num_episodes}: has no frames")
        wanted = {k: (np.asarray(obs[k]), f.dtype, tuple(f.shape)) for k, f in self.observation.items()}
        wanted["action"] = (np.asarray(action), "float32", (self.meta.action.dim,))
        wanted["next.reward"] = (np.asarray(reward), "float32", ())
        wanted |= {k: (np.asarray(marks[k]), f.dtype, tuple(f.shape)) for k, f in self.marks.items()}
        wanted["next.success"] = (np.asarray(success), "bool", ())
        columns = {}
        for key, (value, dtype, shape) in wanted.items():
            check_column(key, value, (length, *shape), where=f"episode {self.num_episodes}")
            value = value.astype(dtype, copy=False)
            flat = value.reshape(length, *(shape or (1,)))
            columns[key] = value.transpose(0, 2, 3, 1) if key in self._videos else flat
        return columns

    def close(self, *, complete: bool) -> None:
        """Finish the files and move them to `path`; with no episode, remove them.

        An existing dataset is replaced only by a complete one.

        Raises:
            DataError: some episode is not whole, or another recording took `path`; names the folder that has them.
        """
        if not self._place.folder.exists():
            return
        with hold_interrupts():
            with suppress(Exception) if self._broken else nullcontext():
                self._dataset.finalize()
            if self._broken is not None:
                raise DataError(
                    f"{self.path}: writing episode {self.num_episodes} failed ({self._broken!r}). The "
                    f"{self.num_episodes} episodes before it are in {self._place.keep()}. Remove the cause, then "
                    "record again."
                ) from self._broken
            if self.num_episodes <= (0 if complete else self.begun):  # else they are the first of those at `path`
                self._place.remove()
                return
            self.meta.complete = complete
            self.meta.save(self._place.root)
            if self.path.exists() and not complete and not self.begun:
                kept = self._place.keep()
                _log.warning("%s is as it was; the %d new episodes are in %s.", self.path, self.num_episodes, kept)
                return
            self._place.place(replaced=self._replaces())

    def __enter__(self) -> DatasetWriter:
        self._signals.enter_context(interrupt_at_end())
        return self

    def __exit__(self, kind: type[BaseException] | None, *about: object) -> None:
        with self._signals:
            self.close(complete=kind is None)
        if kind is None and not self.num_episodes:
            raise DataError(f"{self.path}: no episode was recorded")
