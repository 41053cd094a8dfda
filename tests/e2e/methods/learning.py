"""The defining behaviour of methods that change what an update learns: one entry a method."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from tests.e2e.methods import formulas as f
from tests.e2e.methods import objectives as o
from tests.e2e.methods.objectives import KL, Check, Objective, Plus, Whole, by_reward, clipped
from tests.e2e.methods.step import Step


def at_1(s: Step) -> Tensor:
    """(M,): log-prob of the policy at temperature 1."""
    return s.taken(s.logits(s.policy, at_1=True).log_softmax(-1))


def dcpo(s: Step, reward: Tensor) -> Tensor:
    return -(at_1(s) - s.now).exp().detach() * s.ratio * reward


def rows(at: Callable[[Step], Tensor], mean: Callable[[Step, Tensor], Tensor]) -> f.AtStep:
    """A mean over the tokens of some rows alone, (M,)."""
    return lambda s: mean(s, at(s)[s.row])


def of_tokens(_s: Step, there: Tensor) -> Tensor:
    return there / there.sum()


def of_rows(s: Step, there: Tensor) -> Tensor:
    mean = there / s.length[s.row]
    return mean / mean.sum()


def right(s: Step) -> Tensor:
    return s.correct


def wrong(s: Step) -> Tensor:
    return 1 - s.correct


def sft(s: Step, _a: Tensor) -> Tensor:
    return -s.now


def iw_sft(s: Step, _a: Tensor) -> Tensor:
    return -s.sum(s.old - s.ref).exp().clamp(0.5, 2.0)[s.row] * s.now


def weighed_kl(s: Step, a: Tensor) -> Tensor:
    return s.ratio * f.k3(s, a)


def k2_for_k3(s: Step, a: Tensor) -> Tensor:
    """The number of k3, the gradient of k2."""
    half = (s.now - s.ref) ** 2 / 2
    return half - half.detach() + f.k3(s, a).detach()


def forward_kl(s: Step, _a: Tensor) -> Tensor:
    return s.reward.exp()[s.row] * (s.ref - s.old).exp() * (s.ref - s.now)


def drift(s: Step, _a: Tensor) -> Tensor:
    u = (s.now - s.sampler).exp()
    return u - u.log() - 1


def rover(s: Step, a: Tensor) -> Tensor:
    value = (s.now_all - s.ref_all).mean(-1).detach()
    last = torch.cat([torch.arange(n) == n - 1 for n in s.length.tolist()])
    return (s.now - s.ref - a - torch.where(last, 0.0, value.roll(-1))) ** 2


def tbrm(s: Step, a: Tensor) -> Tensor:
    first = s.length.cumsum(0) - s.length
    value = s.now_logits.logsumexp(-1)[first]
    return ((value + s.sum(s.now - s.ref) - a[first] / 0.002) ** 2)[s.row]


def decoupled(s: Step, a: Tensor) -> Tensor:
    w = (s.old - s.sampler).exp()
    return torch.where(w <= 5, w, 0.0) * f.clip(0.2, 0.2)(s, a)


def masked_sequence(s: Step, _a: Tensor) -> Tensor:
    w = s.sum(s.old - s.sampler).exp()[s.row]
    return torch.where((w >= 0.5) & (w <= 2), w, 0.0)


fixed = partial(Objective, mean=f.fixed_length)

LEARNING_METHODS: Mapping[str, Check] = {
    # Advantages
    "bnpo": clipped(0.2, 0.28, f.bnpo, f.fixed_length),
    "dgpo": clipped(0.2, 0.2, f.dgpo, f.of_varied),
    "dr_grpo": fixed(advantage=f.dr_grpo),
    "grpo": clipped(mean=f.sequence_mean, plus=(KL(0.04, mean=f.sequence_mean),)),
    "hapo": Objective(lambda s, a: -s.ratio * a, f.hapo, weight=o.hapo),
    "lite_ppo": clipped(advantage=f.lite_ppo),
    "maxrl": by_reward(f.maxrl, f.fixed_length),
    "ngrpo": clipped(0.16, 0.24, f.ngrpo),
    "open_reasoner_zero": clipped(advantage=f.gae(1.0), update=0),
    "opo": by_reward(f.opo),
    "pass_at_k": clipped(0.2, 0.28, f.pass_at_k),
    "ppo": clipped(advantage=f.gae(0.95), update=0),
    "reinforce": by_reward(f.own_reward, f.fixed_length),
    "reinforce_plus_plus": clipped(advantage=f.reinforce_plus_plus),
    "reinforce_plus_plus_baseline": clipped(
        advantage=f.reinforce_plus_plus_baseline, plus=(Plus(f.k2_of(lambda s: s.ref), 0.001),)
    ),
    "rloo": by_reward(f.rloo, f.fixed_length),
    "stratified": clipped(),
    "tempo": clipped(advantage=f.tempo),
    "univg_r1": clipped(advantage=f.univg_r1, mean=f.sequence_mean, plus=(KL(0.04, mean=f.sequence_mean),)),
    "unlikeliness": clipped(advantage=f.unlikeliness),
    # Objectives of pairs and groups
    "copg": Whole(o.all_pairs(lambda s: (s.reward - 0.1 * s.sum(s.now - s.ref)) / 0.2**0.5)),
    "disco": Whole(o.disco),
    "dpo": Whole(o.over_pairs(o.dpo, "ref")),
    "rebel": Whole(o.all_pairs(lambda s: s.sum(s.now - s.old) - s.reward)),
    "reg_grpo": Whole(o.reg_grpo),
    "spin": Whole(o.given_first),
    "stepagent": Whole(o.given_first),
    "trpa": Whole(o.trpa),
    "veripo": Whole(o.over_pairs(o.dpo, "ref")),
    # Losses of tokens and completions
    "aepo": Objective(plus=(Plus(lambda s, r: -r * at_1(s), 0.1, f.own_reward),)),
    "asymre": by_reward(f.dr_grpo, plus=(Plus(f.reinforce, 0.1, lambda s: torch.ones_like(s.reward)),)),
    "cispo": Objective(f.weighed(lambda s, _a: s.ratio.clamp(max=5))),
    "clip_higher": Objective(is_grpo=True),
    "cpgd": Objective(f.cpgd, f.dr_grpo, plus=(Plus(drift, 0.001),)),
    "dapo": clipped(0.2, 0.28, mean=f.of_varied),
    "dcpo": Objective(plus=(Plus(dcpo, 0.1, f.own_reward),)),
    "decoupled_ppo": Objective(decoupled),
    "dppo": Objective(f.dppo("tv", 0.15)),
    "dppo_kl": Objective(f.dppo("kl", 0.05)),
    "dual_clip": Objective(f.dual_clip(0.0, 3.0)),
    "gmpo": Objective(f.gmpo, mean=f.sequence_mean),
    "grpo_guard": Objective(f.standardised),
    "gspo": Objective(f.gspo(3e-4, 4e-4), mean=f.sequence_mean),
    "gspo_token": Objective(f.gspo_token(3e-4, 4e-4), mean=f.sequence_mean),
    "luspo": Objective(f.gspo_token(2e-3, 2.5e-3), mean=f.sequence_sum),
    "mm_eureka": Objective(f.dual_clip(0.0, 3.0), mean=f.sequence_mean),
    "opmd": Objective(f.opmd, f.dr_grpo, f.sequence_sum),
    "rec": Objective(f.rec(ring=False), f.dr_grpo),
    "rec_ring": Objective(f.rec(ring=True), f.dr_grpo),
    "rover": Objective(rover, f.dr_grpo),
    "sapo": Objective(f.sapo, mean=f.sequence_mean),
    "scale_rl": Objective(
        f.weighed(lambda s, _a: f.to_sampler(s).clamp(max=5)),
        f.reinforce_plus_plus_baseline,
        f.prompt_mean_of_varied,
    ),
    "tbrm": Objective(tbrm, f.own_reward, f.sequence_mean),
    "topr": Objective(
        f.weighed(lambda s, a: torch.where(a < 0, f.whole(s).exp().clamp(max=1), 1.0)), f.dr_grpo, f.sequence_sum
    ),
    "vespo": Objective(f.vespo),
    # Weights and means
    "bapo": Objective(lambda s, a: -s.ratio * a, weight=o.bapo),
    "clip_cov": Objective(lambda s, a: -torch.minimum(s.ratio * a, s.ratio.clamp(0, 2) * a), weight=o.clip_cov),
    "delta_l": Objective(mean=f.delta_l),
    "entropy_shaped": Objective(weight=o.entropy_shaped),
    "kl_cov": Objective(
        lambda s, a: -s.ratio * a,
        plus=(
            Plus(
                lambda s, a: (s.now - s.old).abs() * o.most(o.covariance(s, a), max(1, int(0.002 * len(a)))),
                1.0,
            ),
        ),
    ),
    "red_weight": by_reward(f.dr_grpo, weight=o.weighed_by(torch.exp)),
    "stable_reinforce": Objective(
        f.dual_clip(1e-3, 1e3), mean=f.sequence_mean, weight=o.weighed_by(o.without_outliers)
    ),
    "steer": Objective(weight=o.steer),
    "top_entropy": Objective(weight=lambda s, _a: o.top(s.entropy, 0.2)),
    # Terms beside the loss
    "epo": Objective(plus=(Plus(f.entropy, 0.001),)),
    "grpo_d": Objective(plus=(KL(0.001 + 0.039 / 99),)),
    "iw_sft": Objective(iw_sft, mean=rows(right, of_tokens)),
    "k2_loss": Objective(plus=(Plus(k2_for_k3, 0.001),)),
    "llds": Objective(plus=(Plus(f.llds, 0.1),)),
    "one_shot": Objective(plus=(KL(0.001), Plus(f.entropy, 0.001))),
    "one_shot_em": Objective(f.entropy, mean=lambda s: -f.token_mean(s)),
    "oreal": Objective(
        sft,
        f.rloo,
        rows(right, of_rows),
        plus=(Plus(f.reinforce, 1.0, f.rloo, rows(wrong, of_rows)), KL(0.01, mean=f.sequence_mean)),
    ),
    "prorl": clipped(0.2, 0.4, plus=(KL(0.0001),)),
    "rapo": Objective(plus=(Plus(forward_kl, 0.01),)),
    "skywork_or1": Objective(plus=(Plus(f.entropy, 0.006),)),
    "t1": Objective(plus=(KL(0.001), Plus(f.entropy, 0.001))),
    "unbiased_kl": Objective(plus=(Plus(weighed_kl, 0.001),)),
    # Importance weights of rows that an older policy sampled
    "bypass_pg_geo_rs": by_reward(weight=o.importance("now", rejects=o.far)),
    "bypass_pg_geo_rs_seq_tis": by_reward(weight=o.importance("now", "sequence", rejects=o.far)),
    "bypass_pg_geo_rs_token_tis": by_reward(weight=o.importance("now", "token", rejects=o.far)),
    "bypass_pg_is": by_reward(weight=o.importance("now", "sequence")),
    "bypass_pg_token_icepop": by_reward(weight=o.icepop("now")),
    "bypass_ppo_clip": Objective(f.behaviour_clip),
    "bypass_ppo_clip_geo_rs": Objective(f.behaviour_clip, weight=o.importance("now", rejects=o.far)),
    "bypass_ppo_clip_k3_rs": Objective(f.behaviour_clip, weight=o.importance("now", rejects=o.k3_far)),
    "decoupled_geo_rs": Objective(weight=o.importance("old", rejects=o.far)),
    "decoupled_geo_rs_seq_tis": Objective(weight=o.importance("old", "sequence", rejects=o.far)),
    "decoupled_geo_rs_token_tis": Objective(weight=o.importance("old", "token", rejects=o.far)),
    "decoupled_k3_rs": Objective(weight=o.importance("old", rejects=o.k3_far)),
    "decoupled_k3_rs_seq_tis": Objective(weight=o.importance("old", "sequence", rejects=o.k3_far)),
    "decoupled_k3_rs_token_tis": Objective(weight=o.importance("old", "token", rejects=o.k3_far)),
    "decoupled_seq_is": Objective(weight=o.importance("old", "sequence")),
    "geometric_tis": Objective(weight=o.importance("old", "geometric")),
    "icepop": Objective(weight=o.icepop("old")),
    "sequence_mis": Objective(weight=masked_sequence),
    "tis": Objective(weight=o.importance("old", "token")),
}
