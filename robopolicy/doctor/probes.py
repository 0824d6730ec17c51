"""Probe GL drivers, CUDA and wheels in separate processes, which may crash.

`probe` runs a program and returns its answer; `rendering`, `video`, `cuda`, `warp` and `tracking` are such programs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

TIMEOUT = 120.0  # s: a cold import of torch from a slow disk takes tens of seconds


class ProbeError(Exception):
    """A probe process failed; the message is its last line."""


def probe(code: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run `code` in a fresh interpreter and return the JSON object that it prints last.

    Raises:
        ProbeError: it crashed, hung or printed something else.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ProbeError(f"no answer within {TIMEOUT:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        how = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise ProbeError(lines[-1].strip() if lines else how)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        raise ProbeError(f"unexpected answer: {done.stdout[-200:]!r}") from None


def rendering() -> None:
    """Render one frame off-screen, as cameras and videos do."""
    import mujoco
    from OpenGL.GL import GL_RENDERER, glGetString

    model = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><light pos="0 0 3"/><geom type="plane" size="1 1 .1"/>
        <geom type="sphere" size=".3" pos="0 0 .3" rgba=".9 .3 .1 1"/></worldbody></mujoco>"""
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer = mujoco.Renderer(model, 64, 64)
    renderer.update_scene(data)
    renderer.render()  # the first frame compiles shaders
    start = time.perf_counter()
    picture = renderer.render()
    ms = 1e3 * (time.perf_counter() - start)
    assert picture.std() > 1, "the rendered frame is blank"
    print(json.dumps({"ms": ms, "device": glGetString(GL_RENDERER).decode()}), flush=True)
    os._exit(0)  # GL drivers complain about the order in which an interpreter shuts down


def video() -> None:
    """Encode and decode a short H.264 clip, as evaluation and reports do."""
    import io

    import av
    import numpy as np

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as file:
        stream = file.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for i in range(8):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 30 * i, np.uint8), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    buffer.seek(0)
    with av.open(buffer, "r") as clip:
        frames = len(list(clip.decode(video=0)))
    assert frames == 8, f"8 frames were encoded, {frames} decoded"
    print(json.dumps({"version": av.__version__}))


def cuda() -> None:
    """Report the GPUs that torch finds, and compute one sum on the first."""
    import torch

    count = torch.cuda.device_count()
    if count:
        assert float(torch.ones(8, device="cuda").sum()) == 8.0
    names = [torch.cuda.get_device_name(i) for i in range(count)]
    memory = [torch.cuda.get_device_properties(i).total_memory for i in range(count)]
    print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "names": names, "memory": memory}))


def warp() -> None:
    """Report the GPUs that Warp finds, and load MuJoCo Warp."""
    import mujoco_warp  # noqa: F401
    import warp as wp

    wp.init()
    print("\n" + json.dumps({"cuda": [f"{d.alias} {d.name}" for d in wp.get_cuda_devices()]}))


def tracking() -> None:
    """Log one number to an offline run of wandb, as a training does by default."""
    import tempfile
    from pathlib import Path

    import wandb

    from robopolicy.runs.logger import Tracker
    from robopolicy.runs.wandb_run import auto_mode

    mode = os.environ.get("WANDB_MODE") or auto_mode(wandb)
    os.environ["WANDB_MODE"] = "offline"
    with tempfile.TemporaryDirectory() as folder:
        tracker = Tracker(folder, quiet=True)
        tracker.log({"doctor": 1.0}, 1)
        tracker.close()
        assert not tracker.failure, tracker.failure
        assert list(Path(folder).glob("wandb/offline-run-*/run-*.wandb")), "an offline run left no file"
    print(json.dumps({"version": wandb.__version__, "mode": mode}))
