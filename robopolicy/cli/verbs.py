"""List the verbs of the command line."""

from __future__ import annotations

from robopolicy.config.verb import Verb
from robopolicy.core.errors import UsageError, closest

_RESTARTS = "Nothing is left half done; the same command starts again"
_RESUMES = "What was saved is whole; the same command goes on from there"
_EVALUATED = "Finished evaluations are kept; the same command uses them and runs the others"

VERBS = {
    verb.name: verb
    for verb in (
        Verb(
            "demos",
            "record demonstrations of a scripted expert as a LeRobot dataset",
            "robopolicy.cli.demos:demos",
            "Finished demonstrations, if any, are kept as an incomplete dataset, unless a whole one was to be "
            "replaced, which is as it was; the same command records them again and replaces it",
        ),
        Verb(
            "teleop",
            "record demonstrations of your own, driving the arm by keys",
            "robopolicy.real.teleoperation.teleop:teleop",
            "Episodes that were kept are a whole dataset; the same command wants a new folder where it says out=",
        ),
        Verb(
            "train",
            "imitation (algo=bc) or reinforcement on a base (algo=residual)",
            "robopolicy.training.train:train",
            _RESUMES,
        ),
        Verb(
            "refine",
            "refine a policy by settings that rules choose, and compare",
            "robopolicy.cli.refine:refine",
            _RESUMES,
        ),
        Verb(
            "pipeline",
            "imitate, collect, refine, distil to one step, compare, report",
            "robopolicy.cli.pipeline:pipeline",
            _RESUMES,
        ),
        Verb(
            "eval",
            "run a checkpoint on test episodes: rates, intervals, videos",
            "robopolicy.cli.eval:evaluate",
            _EVALUATED,
        ),
        Verb(
            "compare",
            "two checkpoints on the same episodes, with a paired test",
            "robopolicy.cli.compare:compare",
            _EVALUATED,
        ),
        Verb(
            "gate",
            "is a policy better than its base? From recorded episodes",
            "robopolicy.cli.gate:gate",
            _RESTARTS,
        ),
        Verb(
            "robustness",
            "success under latency, other friction and mass, noise",
            "robopolicy.cli.robustness:robustness",
            _EVALUATED,
        ),
        Verb("report", "one self-contained HTML page about a run", "robopolicy.cli.report:report", _RESTARTS),
        Verb(
            "deploy",
            "run a checkpoint on an arm, behind safety limits",
            "robopolicy.real.deploy.deploy:deploy",
            "Recordings of finished episodes are kept; the same command begins with the first episode, and wants "
            "a new folder where it says record=",
        ),
        Verb(
            "arm new",
            "limits and wiring of an arm of your own, from its URDF",
            "robopolicy.real.arms.new:arm_new",
            _RESTARTS,
        ),
        Verb(
            "arm check",
            "a wiring and its limits against the running arm",
            "robopolicy.real.arms.check:arm_check",
            _RESTARTS,
        ),
        Verb(
            "arm camera",
            "lens and pose of a camera, from pictures of a board (hand–eye calibration)",
            "robopolicy.real.arms.camera:arm_camera",
            _RESTARTS,
        ),
        Verb(
            "serve",
            "a policy for arms on other machines",
            "robopolicy.real.planning.server:serve",
            "The server is closed; the same command opens it again",
        ),
        Verb(
            "replay",
            "reproduce every safety decision of a recorded deployment",
            "robopolicy.real.recording.replay:replay",
            _RESTARTS,
        ),
        Verb(
            "convert",
            "make training data of recorded deployments, or of others' files",
            "robopolicy.real.datasets.convert:convert",
            "Finished episodes are kept as an incomplete dataset, unless one was to be replaced, which is as it "
            "was; the same command with overwrite=true starts again and replaces it",
        ),
        Verb(
            "data import",
            "a LeRobot dataset of others: fetch, convert, say what its actions mean",
            "robopolicy.datasets.importing:data_import",
            _RESTARTS,
        ),
        Verb(
            "data check",
            "every defect of a dataset, by episode and frame",
            "robopolicy.datasets.inspect:data_check",
            _RESTARTS,
        ),
        Verb("data view", "an episode in LeRobot's viewer", "robopolicy.datasets.view:data_view", _RESTARTS),
        Verb("export", "a checkpoint for LeRobot's commands", "robopolicy.policies.lerobot.export:export", _RESTARTS),
        Verb("push", "a policy or a dataset to the Hugging Face hub", "robopolicy.cli.push:push", _RESTARTS),
        Verb(
            "quickstart",
            "demonstrate, imitate, refine, compare and report on the pick task",
            "robopolicy.cli.quickstart:quickstart",
            _RESUMES,
        ),
        Verb(
            "doctor",
            "what this machine has, what is missing, how to mend it",
            "robopolicy.doctor:main",
            _RESTARTS,
            config=False,
        ),
    )
}
OPTIONS = ("--help", "--cfg", "--multirun", "--config-dir", "--allow", "--debug")


def find_verb(name: str) -> Verb:
    """Return a verb by name.

    Raises:
        UsageError: there is none; the closest names are offered.
    """
    if name not in VERBS:
        raise UsageError(f"unknown verb {name!r}. {closest(name, VERBS)}")
    return VERBS[name]
