"""Off-policy PPO on the denoising chain, counted where all critics agree (OGPO+CA, 2026, arXiv 2605.03065).

At states of the replay buffer, groups of denoising chains are drawn from the policy that learns, and their chunks are
scored by an ensemble Q(observation, chunk). A chain's advantage compares it with its group, and PPO changes the chain's
last K' steps. No gradient passes through Q, and no env step is needed for a policy step.

Differences from the paper: a group shares the steps of the frozen network. The score is a lower bound of the gain over
the base, mean − confidence·deviation of the heads' gains. KL(policy ‖ base) is penalised by a weight that falls
geometrically. Imitation has the error of the chunk that the network expects: the error of a velocity is 1/(1 − t) times
that, and drowned the advantages of flows. An average of the weights acts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from robopolicy.algos.advantage_estimator import Advantages
from robopolicy.algos.chunk_critic import ChunkLearner
from robopolicy.algos.dppo import ChainObjective, DenoisingConfig, DenoisingSamples
from robopolicy.algos.residual import fallen
from robopolicy.buffers.chunk_replay_buffer import DEMONSTRATION, REWIND, ChunkBatch
from robopolicy.config.schema import Count, Fraction, Natural, NonNegative, Positive
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import Metrics
from robopolicy.policies.base import SEEN, Policy
from robopolicy.policies.denoising_chain import ChainNoise, FloorNoise

_DRAWS = 300  # before agreement is judged
_RATE = 0.05  # at which the running size of advantages follows


class OGPO(ChunkLearner):
    """Climbs the critic by PPO over drawn chains, and imitates episodes that succeeded beside it.

    Args:
        states: rows of a batch at which chains are drawn, and of which the successes are imitated, at most.
        chains: G, chains of a group.
        epochs, minibatch: passes over the denoising steps of a draw, and steps per gradient step.
        policy_delay: critic updates per draw.
        noise: makes the chain's exploring deviation; see ChainNoise.
        denoising_gamma, clip, clip_first, clip_rate: see DenoisingConfig.
        agreement: count a chain only where all heads agree on whether it is better than its group.
        confidence: deviations of the heads' gains over the base that are taken off their mean, at each chain.
        imitation: weight of the imitation of episodes that succeeded, and of demonstrations.
        anchor, anchor_final, anchor_steps: weight of KL(policy ‖ base) per element, at the chains that count. It falls
            geometrically from the first to the second over this many env steps of learning, and stays there;
            `anchor=0`: none.
        actor_lr, noise_samples, **options: see ChunkLearner.

    Raises:
        ConfigError: groups of one, noise that is learned, or a deterministic chain.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        states: Count = 64,
        chains: Count = 4,
        epochs: Count = 4,
        minibatch: Count = 1_280,
        policy_delay: Count = 3,
        noise: Callable[..., ChainNoise] = FloorNoise,
        denoising_gamma: Fraction = 0.99,
        clip: Positive = 0.05,
        clip_first: Positive = 0.02,
        clip_rate: Positive = 3.0,
        agreement: bool = True,
        confidence: NonNegative = 1.0,
        imitation: NonNegative = 1.0,
        anchor: NonNegative = 1.0,
        anchor_final: Positive = 0.2,
        anchor_steps: Natural = 6_000,
        actor_lr: Positive = 3e-4,
        noise_samples: Count = 2,
        **options: Any,
    ) -> None:
        super().__init__(policy, actor_lr=actor_lr, noise_samples=noise_samples, **options)
        if chains < 2:
            raise ConfigError(
                f"algo.chains: chains are compared with others of their group; expected ≥ 2, got {chains}"
            )
        self.objective = ChainObjective(
            self.learned,
            DenoisingConfig(
                noise=noise, denoising_gamma=denoising_gamma, clip=clip, clip_first=clip_first, clip_rate=clip_rate,
                minibatch=minibatch,
            ),
        )  # fmt: skip
        if list(self.objective.noise.parameters()):
            raise ConfigError(
                f"algo.noise: {type(self.objective.noise).__name__} is learned, which only DPPO does. Set "
                "algo.noise._target_=floor"
            )
        self.states, self.chains, self.epochs, self.minibatch = states, chains, epochs, minibatch
        self.policy_delay, self.agreement = policy_delay, agreement
        self.confidence, self.imitation = confidence, imitation
        self.anchor, self.anchor_final, self.anchor_steps = anchor, anchor_final, anchor_steps
        self.draws, self.agreed = 0, 0.0  # since this process began; sum of the shares that counted
        self.size = 0.0  # running mean |advantage|, in units of Q

    def update(self, batch: ChunkBatch, *, learned_steps: int | None) -> Metrics:
        """Take one critic step and, every `policy_delay`-th time, one draw's policy steps unless it is critic-only.

        Args:
            learned_steps: env steps since learning began, which drive the anchor; None for a critic-only update.
        """
        self.updates += 1
        batch = batch.to(self.device)
        metrics = self.update_critic(batch)
        if learned_steps is not None and self.updates % self.policy_delay == 0:
            self.objective.anchor = self.anchor_weight(learned_steps)
            metrics |= self.update_policy(batch)
        return metrics

    def anchor_weight(self, learned_steps: int) -> float:
        """Return the weight of the KL to the base after `learned_steps` env steps of learning."""
        return fallen(self.anchor, self.anchor_final, learned_steps / max(1, self.anchor_steps))

    def update_policy(self, batch: ChunkBatch) -> Metrics:
        """Draw groups at states of the batch, and take PPO's steps on the chains that count.

        The policy is unchanged where none counts.
        """
        chosen = torch.randperm(len(batch.reward), generator=self.generator)[: self.states].to(self.device)
        cond, chunk = batch.obs[SEEN][chosen], self.executed(batch)[chosen]
        good, found = self.good(batch)[chosen], []
        samples, counted, metrics = self.draw(cond)
        rows = counted.repeat_interleave(self.objective.steps).nonzero()[:, 0]  # [M]
        share = float(counted.float().mean())
        self.check_agreement(share)
        for _ in range(self.epochs if len(rows) else 0):
            order = rows[torch.randperm(len(rows), generator=self.generator).to(self.device)]
            for part in order.tensor_split(-(-len(rows) // self.minibatch)):
                loss, stats = self.objective.loss(samples, part)
                loss = share * loss  # as if the chains that do not count had a loss of 0
                if self.imitation and bool(good.any()):
                    imitation = self.imitation_loss(cond, chunk, good.float(), of_chunk=True)
                    loss = loss + self.imitation * imitation
                    metrics["actor/imitation"] = float(imitation.detach())
                norm = self._step_actor(loss)
                found.append([*stats.tolist()[:2], float(norm)])
        if found:
            names = ("actor/kl", "actor/clipped", "actor/grad_norm")
            metrics |= dict(zip(names, torch.tensor(found).mean(0).tolist(), strict=True))
        return {**metrics, "actor/anchor": self.objective.anchor, "actor/successes": float(good.any(1).float().mean())}

    def good(self, batch: ChunkBatch) -> Tensor:
        """Return which steps [B H] are imitated: of episodes that succeeded, and of demonstrations; no rewinds."""
        good = batch.success | (batch.driver[:, 0] == DEMONSTRATION)
        return good[:, None] & (batch.driver != REWIND) & batch.keep

    @torch.no_grad()
    def draw(self, cond: Tensor) -> tuple[DenoisingSamples, Tensor, Metrics]:
        """Draw a group of chains at each cond [B C] and score them.

        Returns:
            The samples of all D = B·G chains, which of them count [D] bool, and metrics.
        """
        many, each = len(cond), cond.repeat_interleave(self.chains, dim=0)
        shape, spread = (len(each), *self.policy.chain_noise_shape), self.objective.noise
        noise = torch.randn(shape, generator=self.generator).to(self.device)
        start = self.learned.begin_chain(cond, noise=noise[:: self.chains])
        chain = self.learned.sample_chain(
            each, noise=noise, spread=spread, start=start.repeat_interleave(self.chains, dim=0)
        )
        chunk = chain.x[:, -1].clamp(self.low, self.high).unflatten(0, (many, self.chains))
        gain = self.q(cond, chunk) - self.q(cond, self.base_chunk(cond, start))[..., None]  # [E B G]
        advantage, counted = self.advantage(gain)
        counted = counted.flatten()
        weight = cond.new_full((len(each), self.played), 1.0 / self.played)
        log_prob = (chain.log_prob.mean(-1) * weight[:, None]).sum(-1)  # [D K']
        scored = Advantages(counted, advantage.flatten(), advantage.flatten(), advantage.flatten(), weight)
        samples = DenoisingSamples(each, chain.x.flatten(0, 1), log_prob.flatten(), scored)
        if self.objective.anchor:
            samples = samples._replace(anchor=self.objective.anchor_means(samples))
        return samples, counted, {
            "actor/agreement": float(counted.float().mean()), "actor/gain": float(gain.mean()),
            "actor/gain_deviation": float(gain.mean(-1).std(dim=0, correction=0).mean()), "actor/advantage": self.size,
        }  # fmt: skip

    def base_chunk(self, cond: Tensor, start: Tensor) -> Tensor:
        """Return the chunk [B H Da] to which the frozen network leads from `start` [B H Da] without noise."""
        x = start
        for k in torch.arange(self.objective.steps, device=self.device):
            x, _ = self.learned.transition(cond, x, k.expand(len(x)), frozen=True)
        return x.clamp(self.low, self.high)

    def advantage(self, gain: Tensor) -> tuple[Tensor, Tensor]:
        """Compare chains with their group.

        Args:
            gain: [E B G] of each head: Q of the chain's chunk minus Q of the base's.

        Returns:
            [B G] advantages over their running mean size, and [B G] bool: which count.
        """
        apart = gain - gain.mean(dim=-1, keepdim=True)
        size = float(apart.mean(dim=0).abs().mean())
        self.size = size if self.size == 0.0 else self.size + _RATE * (size - self.size)
        score = gain.mean(dim=0) - self.confidence * gain.std(dim=0, correction=0)
        advantage = score - score.mean(dim=-1, keepdim=True)
        counted = (apart > 0).all(dim=0) | (apart < 0).all(dim=0)
        if not self.agreement:
            counted = torch.ones_like(counted)
        return advantage / max(self.size, 1e-8), counted

    def check_agreement(self, share: float) -> None:
        """Take in the share of chains that count; warn once where, after _DRAWS draws, it is no more than chance."""
        self.checks.warn()
        self.draws, self.agreed = self.draws + 1, self.agreed + share
        chance = 2.0 ** (1 - self.critic.heads)  # of independent heads
        if self.draws < _DRAWS or self.critic.heads == 1 or self.agreed > 1.5 * chance * self.draws:
            return
        self.checks.once(
            "agreement",
            "actor/agreement: the heads agree about %.1f%% of chains after %d draws, independent heads would about "
            "%.1f%%; from other chains nothing is learned. Raise loop.critic_only_updates or loop.updates_per_step, "
            "give demonstrations (dataset=), or set algo.agreement=false.",
            100 * self.agreed / self.draws, self.draws, 100 * chance,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "size": self.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.size = float(state["size"])
