"""Sparse training in SBX (Stable-Baselines Jax): wraps its optimizer, masks its target networks.

python examples/sbx_td3.py --steps=20000          # needs sbx-rl
"""

import argparse
from functools import partial

import jax
import optax
import sbx

import rlx2_jax as rlx2


def sparse_adam(learning_rate, sparsity, interval, t_end):
    """An optimizer factory, which SBX calls with its learning rate for actor and critics."""
    return rlx2.sparsify(optax.adam(learning_rate), sparsity, interval=interval, t_end=t_end)


class SparseTD3(sbx.TD3):
    @staticmethod
    @jax.jit
    def soft_update(tau, qf_state, actor_state):
        """Applies the current masks, because a plain Polyak average keeps dropped links."""
        states = sbx.TD3.soft_update(tau, qf_state, actor_state)
        return tuple(
            s.replace(target_params=rlx2.mask(s.target_params, s.opt_state)) for s in states
        )


def main(steps=20_000, sparsity=0.9, env="InvertedPendulum-v5", warmup=1000, hidden=64):
    optimizer = partial(sparse_adam, sparsity=sparsity, interval=200, t_end=int(0.75 * steps))
    model = SparseTD3(
        "MlpPolicy",
        env,
        learning_rate=1e-3,
        learning_starts=warmup,
        policy_kwargs={"optimizer_class": optimizer, "net_arch": [hidden, hidden]},
        seed=0,
    )
    model.learn(steps)
    for name in ("actor_state", "qf_state"):
        state = getattr(model.policy, name)
        print(f"{name}: sparsity {rlx2.sparsity(state.opt_state):.3f}")
        print(rlx2.summary(state.params, state.opt_state))
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--sparsity", type=float, default=0.9)
    main(**vars(parser.parse_args()))
