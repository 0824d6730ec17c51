"""The stages of `robopolicy pipeline`; each calls a verb as the command line does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from robopolicy.cli.pipeline_films import COMPARED, film_first_and_last
from robopolicy.cli.pipeline_gate import MODEL, PipelineGate, needless, unusable
from robopolicy.cli.pipeline_names import named, split_keys, stage_of
from robopolicy.cli.refine import NUM_ENVS, look
from robopolicy.cli.run_verb import call
from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.core.errors import ConfigError, DataError, SpecError
from robopolicy.core.types import Metrics
from robopolicy.datasets.metadata import RecordingMeta, env_steps_of, recorded
from robopolicy.evaluation.compare import compare
from robopolicy.evaluation.policy_ref import PolicyRef, env_of
from robopolicy.evaluation.saved import evaluated_rows
from robopolicy.policies.find import is_ours, read_spec
from robopolicy.reporting.pipeline_page import StageResult
from robopolicy.runs.checkpointer import find_policy, load_policy
from robopolicy.runs.run_dir import open_run
from robopolicy.runs.stages import FILE, StageRecords
from robopolicy.training.offline_rl import NoFailures
from robopolicy.training.refinement_rules import check_keys, choose
from robopolicy.training.teacher_episodes import FOLDER


@dataclass
class Flow:
    """The stages, with the policies and data that they have made so far.

    `policies`: path by stage. `accepted`: stage of the newest accepted policy. `results`: by stage. `collected`:
    path of the episodes by stage. `settled`: why no further round is made. `gate`: decides what is accepted.
    `num_envs`: N of all stages but `online`.
    """

    out: Path
    task: dict[str, Any]
    dataset: Path | None
    more: dict[str, dict[str, Any]]
    gate: PipelineGate = field(default_factory=PipelineGate)
    num_envs: int | None = None
    common: dict[str, Any] = field(default_factory=dict)
    policies: dict[str, Path] = field(default_factory=dict)
    accepted: str | None = None
    results: dict[str, StageResult] = field(default_factory=dict)
    collected: dict[str, Path] = field(default_factory=dict)
    settled: str = ""

    def __post_init__(self) -> None:
        self.records = StageRecords(self.out)

    @property
    def policy(self) -> Path:
        """The newest accepted policy."""
        assert self.accepted is not None
        return self.policies[self.accepted]

    def demonstrate(self, episodes: int, expert_noise: float) -> bool | None:
        """Record demonstrations of the task's expert in out/demos/data."""
        self.dataset, todo = self._record("demos", {"episodes": episodes, "expert_noise": expert_noise})
        self._add("demos", note=self._successes(self.dataset))
        return todo or None

    def imitate(self, round: int = 1) -> Metrics | None:
        """Learn from the demonstrations; in a further round from all successes too, and the gate decides."""
        name, inputs = named("imitate", round), dict[str, Any]()
        if round > 1:
            inputs = {"loop.rollouts": self.collected, "loop.held_out": self.gate.held_out}
        trained = self._train(name, "algo=bc", dataset=self.dataset, num_envs=self.num_envs, **inputs)
        if round > 1:
            self._gate(name, trained)
        self._made(name, note=self.records[name].note)
        return trained

    def collect(self, rollouts: int, round: int = 1) -> bool | None:
        """Record episodes of the policy in out/collect/data, from other starts than demonstrations of the same seed."""
        name = named("collect", round)
        settings = {
            "episodes": rollouts, "only_success": False, "seed": self.common["seed"] + 1000 * round,
            "expert": {"_target_": "policy", "checkpoint": self.policy},
        }  # fmt: skip
        self.collected[name], todo = self._record(name, settings)
        if round > 1 and (why := self.gate.undecidable(self.collected[name])):
            self.settled = f"{why}: no further round is made."
        self._add(name, note=self._successes(self.collected[name]))
        return todo or None

    def _record(self, name: str, settings: dict[str, Any]) -> tuple[Path, bool]:
        """Record episodes in out/<name>/data; return this path, and whether they were recorded now."""
        data, verb = self.out / name / "data", find_verb("demos")
        given = {"seed": self.common["seed"], "threads": self.common["threads"], "num_envs": self.num_envs, **settings}
        config = compose(verb, settings={"task": self.task, "out": data, **given})
        kept = {key: value for key, value in config.items() if key != "out"}  # the folder may be moved
        with self.records.running(name, kept) as todo:
            if todo:
                with open_run(data.parent, kept, begun=lambda _: recorded(data) == "whole"):
                    if recorded(data) != "whole":
                        call(verb, config)
                    self.records[name].env_steps = env_steps_of(data)
        return data, todo

    def _successes(self, data: Path) -> str:
        found = meta.provenance if (meta := RecordingMeta.load(data)) else {}
        return f"{found.get('successes')} of {found.get('attempted')} episodes succeeded"

    def model(self, round: int = 1) -> bool | None:
        """Learn a world model of all recorded episodes and the demonstrations, by which the gate then judges.

        Where these do not make a usable one, the stage says why, and the gate reads the held-out episodes. None is
        learned for a policy that reads what it would not predict, or where no episode failed.
        """
        name, (*before, newest) = named("model", round), self.collected
        data = {earlier: self.collected[earlier] for earlier in before}
        data |= {} if self.dataset is None else {"demos": self.dataset}
        config = self._config(name, *MODEL, dataset=self.collected[newest], task=None, **{"loop.data": data})
        trained = None
        if not (bad := needless(self.policy, config, self.collected.values())):
            try:
                trained = self._run(name, config)
                bad = unusable(self.out / name)
            except (DataError, SpecError) as error:
                bad = [str(error)]
        self.gate.model = None if bad else self.out / name
        note = f"of {len(self.collected)} recordings{' and the demonstrations' * ('demos' in data)}"
        if bad:
            print(note := f"No world model: {' '.join(bad)} So the gate reads the held-out episodes.")
        self._add(name, note=note)
        return True if trained or bad else None

    def offline(self, round: int = 1) -> Metrics | bool | None:
        """Learn from the recorded episodes; the gate decides whether later stages build on the result.

        Where no episode failed, the policy before it stays.
        """
        name, demos = named("offline", round), {} if self.dataset is not None else {"loop.demo_fraction": 0.0}
        inputs: dict[str, Any] = {"base": self.policy, "dataset": self.dataset, "loop.rollouts": self.collected}
        try:
            trained = self._train(name, "algo=offline", num_envs=self.num_envs, **inputs, **demos)
        except NoFailures as error:
            self.records[name].accepted = False
            self._add(name, note=f"{error} So the policy before it stays.")
            return True
        self._gate(name, trained)
        self._made(name, note=self.records[name].note)
        return trained

    def _gate(self, name: str, trained: Metrics | None) -> None:
        """Decide whether a stage's policy is accepted in place of the one before."""
        record = self.records[name]
        if not trained and self.gate.decided(record):
            return
        common = {"seed": self.common["seed"], "threads": self.common["threads"]}
        self.gate.decide(record, self.out / name, self.policy, self.collected, common)
        self.records.save()

    def online(self, look_episodes: int, env_steps: int | None) -> Metrics | None:
        record = self.records["online"]
        if not record.overrides:
            ref = PolicyRef.of(self.policy, "latest", self.out / "look")
            env = env_of(self.task, ref, min(self.num_envs or NUM_ENVS, look_episodes))
            run, device = self.out / "online", self.common["device"]
            facts = look(ref, env, look_episodes, self.dataset, device, run=run)
            record.overrides = tuple(o for choice in choose(facts, env_steps) for o in choice.overrides)
        elif env_steps is not None and (chosen := f"loop.total_steps={env_steps}") not in record.overrides:
            raise ConfigError(
                f"env_steps={env_steps}: `online` began with {' '.join(record.overrides)}, expected {chosen} among "
                f"them. Repeat the old env_steps, or remove {self.out / 'online'} to choose again."
            )
        check_keys(record.overrides, f"{self.out / FILE}: online")
        trained = self._train("online", *record.overrides, base=self.policy, dataset=self.dataset)
        if trained or not record.note:
            record.accepted = not self._is_worse(self.out / "online", look_episodes)
            record.note = " ".join(record.overrides)
            record.note += "" if record.accepted else "; worse on validation episodes: the policy before it stays"
            self.records.save()
        self._made("online", note=record.note)
        return trained

    def _is_worse(self, path: Path, episodes: int) -> bool:
        """Return whether a policy is significantly worse than the accepted one on paired validation episodes."""
        env, found, n = None, [], min(self.num_envs or NUM_ENVS, episodes)
        for policy, called in ((self.policy, f"sampled-{n}"), (path, "online")):
            ref = PolicyRef.of(policy, "latest", self.out / "look")
            env = env or env_of(self.task, ref, n)
            loaded = load_policy(ref.policy, device=self.common["device"], env=env.spec)
            found.append(evaluated_rows(loaded, env, ref, called, episodes, "validation", deterministic=False))
        return compare(*found).b_is_worse

    def one_step(self) -> Metrics | None:
        folder = find_policy(self.policy)
        residual, often = (folder / "base").is_dir(), dict[str, int]()
        if residual:  # it corrects every step: so must its student
            often = {"horizon": 4, "n_action_steps": 1}
        elif is_ours(folder):
            spec = read_spec(folder)
            often = {key: getattr(spec, key) for key in ("n_obs_steps", "horizon", "n_action_steps")}
        trained = self._train("one_step", "algo=distill", teacher=self.policy, num_envs=self.num_envs, **often)
        meta = RecordingMeta.load(played := self.out / "one_step" / FOLDER)
        found = {} if meta is None else meta.provenance
        self.records["one_step"].env_steps = 0 if meta is None else env_steps_of(played)
        self._made("one_step", note=f"from {found.get('successes')} successes of the policy before")
        return trained

    def compare(self, episodes: int, videos: int) -> bool:
        """Evaluate and film every policy on test episodes; rows on disk of the same weights and code are used again."""
        for name, path in self.policies.items():
            settings = {
                "checkpoint": path, "task": self.task, "episodes": episodes, "videos": 0, "out": self.out / COMPARED,
                "name": name, "num_envs": self.num_envs, "device": self.common["device"],
                "threads": self.common["threads"],
            }  # fmt: skip
            rows = call(find_verb("eval"), compose(find_verb("eval"), settings=settings))
            before = self.results.get(name, StageResult(name))
            self.results[name] = replace(before, rows=rows)
        film_first_and_last(self, videos)
        return True

    def _train(self, name: str, *words: str, **inputs: Any) -> Metrics | None:
        """Train a stage in its folder; None where it was done."""
        return self._run(name, self._config(name, *words, **inputs))

    def _config(self, name: str, *words: str, **inputs: Any) -> dict[str, Any]:
        """Compose the config of a training."""
        further, settings = split_keys(self.more[stage_of(name)])
        given = {**self.common, "task": self.task, "run_dir": self.out / name, **inputs, **settings}
        return compose(find_verb("train"), [*words, *further], settings=given)

    def _run(self, name: str, config: dict[str, Any]) -> Metrics | None:
        with self.records.running(name, config) as todo:
            trained: Metrics | None = call(find_verb("train"), config) if todo else None
            if trained and name == "online":
                self.records[name].env_steps = int(trained["steps"])
        return trained

    def _made(self, name: str, note: str) -> None:
        """Add the policy of a stage."""
        self._add(name, note=note, run=self.out / name, previous=self.accepted)
        self.policies[name] = self.out / name
        self.accepted = name if self.records[name].accepted else self.accepted

    def _add(self, name: str, **values: Any) -> None:
        record = self.records[name]
        numbers: dict[str, Any] = {"env_steps": record.env_steps, "seconds": record.seconds,
                                   "accepted": record.accepted}  # fmt: skip
        self.results[name] = StageResult(name, **numbers, **values)
