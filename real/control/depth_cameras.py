"""Point clouds of depth cameras, by the function of the simulator, with the arm as it stood at the exposure."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import RobopolicyError
from robopolicy.real.arms.camera_file import CameraCalibration, tool_poses
from robopolicy.real.ros2.depth_topic import DepthCloud
from robopolicy.real.safety import Profile, SafetyError
from robopolicy.real.safety.array_ops import Array
from robopolicy.utils.point_clouds import Intrinsics, PointCloud, Points, thinned

GAP = 0.1  # s between two states, beyond which nothing is known of the arm in between


class JointLog:
    """Remember joint angles of the last seconds, by the time at which the arm had them.

    Args:
        seconds: for which they are remembered.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._times, self._q = deque[float](), deque[Array]()

    @property
    def newest(self) -> float:
        """Time of the newest state, s; −∞: none."""
        return self._times[-1] if self._times else -np.inf

    def take(self, time: float, q: Array) -> None:
        """Add joint angles `q` [n] rad at `time` s. Where time went back, nothing from before counts."""
        if time <= self.newest:
            self._times.clear()
            self._q.clear()
        self._times.append(time)
        self._q.append(q)
        while self._times[0] < time - self.seconds:
            self._times.popleft()
            self._q.popleft()

    def at(self, time: float) -> Array:
        """Return the joint angles [n] rad at `time` s, interpolated.

        Raises:
            SafetyError: no states from right before and after that time.
        """
        k = bisect_left(self._times, time)
        if k < len(self._times) and self._times[k] == time:
            return self._q[k]
        if not 0 < k < len(self._times):
            raise SafetyError(f"depth: no states of the arm are as old as the picture, {self.newest - time:.3f} s")
        before, after = self._times[k - 1], self._times[k]
        if after - before > GAP:
            raise SafetyError(f"depth: no state of the arm came for {after - before:.2f} s around the exposure")
        return np.asarray(self._q[k - 1] + (time - before) / (after - before) * (self._q[k] - self._q[k - 1]))


class Moment(NamedTuple):
    """When something was seen, and where the arm was then.

    Attributes:
        stamp: s of the arm's clock.
    """

    stamp: float
    log: JointLog


@dataclass(frozen=True, eq=False)
class DepthPicture:
    """A depth image that came."""

    numbers: NDArray[Any]  # [h w], whole or floating
    unit: float  # m in one of them
    lens: Intrinsics
    taken: float  # s of the arm's clock
    came: float  # s of our steady clock


class DepthCamera:
    """Compute the clouds of one camera.

    Args:
        key: feature, "observation.points.<camera>".
        source: range, and points that must be seen. calibration: of the camera. profile: of the arm.
        cloud: of the policy: box, number of points, frame, sampling.

    Attributes:
        seed, step: key random sampling: of the episode, and the number of clouds in it.
    """

    def __init__(
        self, key: str, source: DepthCloud, calibration: CameraCalibration, profile: Profile, cloud: PointCloud
    ) -> None:
        self.key, self.source, self.calibration, self.profile, self.cloud = key, source, calibration, profile, cloud
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Begin the episode of `seed`."""
        self.seed, self.step = seed, 0

    def __call__(self, picture: DepthPicture, q: Array) -> Points:
        """Return the cloud [P 3] m. Pixels out of range, 0 and NaN have no point.

        Args:
            picture: depth along the optical axis. q: [n] rad, the arm's joints at its exposure.

        Raises:
            DataError: too few points lie in the box.
        """
        near, far = self.source.range_m
        height, width = self.cloud.size
        numbers, lens = thinned(picture.numbers, picture.lens, height * width)
        depth = numbers.astype(np.float32) * np.float32(picture.unit)
        with np.errstate(invalid="ignore"):
            depth = np.where((depth >= near) & (depth <= far), depth, np.nan)
        pose, tool = self.calibration.in_base(q, self.profile), tool_poses(q[None], self.profile)[0, :3, 3]
        step, self.step = self.step, self.step + 1
        return self.cloud(depth, lens, pose, tool=tool, seed=self.seed, step=step, fewest=self.source.fewest)


class Outcome(NamedTuple):
    """A cloud that is ready, or the reason why there is none."""

    key: str
    came: float  # s of our steady clock, of its picture
    cloud: Points | None
    error: RobopolicyError | None


class CloudMaker:
    """Compute clouds of depth pictures once the arm's states from their exposure have come.

    A camera's newer picture takes the place of one that still waits.

    Args:
        cameras: by feature. log: of the arm.
        threaded: compute in a thread, as real time needs: a cloud takes longer than a tick.
    """

    def __init__(self, cameras: Mapping[str, DepthCamera], log: JointLog, *, threaded: bool) -> None:
        self.cameras, self.log = cameras, log
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="clouds") if threaded and cameras else None
        self._waiting: dict[str, DepthPicture] = {}
        self._running: dict[str, tuple[DepthPicture, Future[Points]]] = {}

    def put(self, key: str, picture: DepthPicture) -> None:
        """Take a picture of a camera."""
        self._waiting[key] = picture

    def finished(self) -> list[Outcome]:
        """Begin clouds that can be computed, and return those that are ready."""
        found = []
        for key in [key for key, (_, future) in self._running.items() if future.done()]:
            picture, future = self._running.pop(key)
            found.append(self._outcome(key, picture, future))
        for key in [k for k, p in self._waiting.items() if p.taken <= self.log.newest and k not in self._running]:
            picture, future = self._waiting.pop(key), Future[Points]()
            try:
                q = self.log.at(picture.taken)
                if self._pool is not None:
                    self._running[key] = picture, self._pool.submit(self.cameras[key], picture, q)
                    continue
                future.set_result(self.cameras[key](picture, q))
            except RobopolicyError as error:
                future.set_exception(error)
            found.append(self._outcome(key, picture, future))
        return found

    def close(self) -> None:
        """End the thread."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _outcome(key: str, picture: DepthPicture, future: Future[Points]) -> Outcome:
        error = future.exception()
        if error is None:
            return Outcome(key, picture.came, future.result(), None)
        if not isinstance(error, RobopolicyError):  # no picture may end the thread's owner
            error = SafetyError(f"{key}: {type(error).__name__}: {error}")
        elif not str(error).startswith(key):
            error = type(error)(f"{key}: {error}")
        return Outcome(key, picture.came, None, error)
