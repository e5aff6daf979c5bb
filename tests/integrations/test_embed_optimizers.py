"""`sparsify` around and inside of optax's optimizers: exact links, and the loss falls."""

from typing import Any

import jax
import optax
import pytest
from embedding import (
    PLAN,
    SPARSITY,
    check_learned,
    check_links,
    check_moved,
    fit,
    loss,
    network,
    rows,
    task,
)

import rlx2_jax as rlx2

pytestmark = pytest.mark.fast

# The table shows the code below, where `sparsify` is `rlx2.sparsify` with sparsity and schedule.
OPTIMIZERS = {
    "Adam": "sparsify(optax.adam(1e-2))",
    "AdamW, clipping, schedule": "sparsify(optax.chain(optax.clip_by_global_norm(1.0), "
    "optax.adamw(optax.cosine_decay_schedule(1e-2, 200))))",
    "SGD with momentum": "sparsify(optax.sgd(0.1, momentum=0.9, nesterov=True))",
    "AdaGrad": "sparsify(optax.adagrad(0.1))",
    "RMSProp": "sparsify(optax.rmsprop(1e-2, centered=True))",
    "Lion": "sparsify(optax.lion(3e-3))",
    "LAMB": "sparsify(optax.lamb(1e-2))",
    "Muon": "sparsify(optax.contrib.muon(1e-2))",
    "Adafactor": "sparsify(optax.adafactor(1e-2, min_dim_size_to_factor=4))",
    "Prodigy": "sparsify(optax.contrib.prodigy())",
    "COCOB": "sparsify(optax.contrib.cocob())",
    "SAM": "sparsify(optax.contrib.sam(optax.adam(1e-2), "
    "optax.chain(optax.contrib.normalize(), optax.sgd(0.05))))",
    "schedule-free": "sparsify(optax.contrib.schedule_free_adamw(1e-2))",
    "`multi_transform` inside": "sparsify(optax.multi_transform("
    '{"a": optax.adam(1e-2), "b": optax.sgd(0.1)}, '
    '{"layer_0": "a", "layer_1": "b"}))',
    "`multi_transform` outside": 'optax.multi_transform({"s": sparsify(optax.adam(1e-2)), '
    '"d": optax.adam(1e-2)}, '
    '{"layer_0": {"kernel": "s", "bias": "d"}, "layer_1": {"kernel": "s", "bias": "d"}})',
    "frozen layers": "sparsify(optax.multi_transform("
    '{"train": optax.adam(1e-2), "freeze": optax.set_to_zero()}, '
    '{"layer_0": {"kernel": "train", "bias": "freeze"}, "layer_1": "train"}))',
    "`MultiSteps`": "optax.MultiSteps(sparsify(optax.adam(1e-2)), 2)",
    "`MultiSteps` inside": "sparsify(optax.MultiSteps(optax.adam(1e-2), 2))",
    "`skip_not_finite`": "optax.MultiSteps(sparsify(optax.adam(1e-2)), 1, "
    "should_skip_update_fn=optax.skip_not_finite)",
    "`inject_hyperparams` inside": "sparsify(optax.inject_hyperparams(optax.adam)("
    "learning_rate=1e-2))",
    "`inject_hyperparams` outside": "optax.inject_hyperparams(lambda learning_rate: "
    "sparsify(optax.adam(learning_rate)))(learning_rate=1e-2)",
    "`apply_if_finite`": "optax.apply_if_finite(sparsify(optax.adam(1e-2)), 3)",
    "`conditionally_mask`": "optax.conditionally_mask(sparsify(optax.adam(1e-2)), "
    "lambda step: step % 2 == 0)",
    "adaptive clipping": "sparsify(optax.chain(optax.adaptive_grad_clip(0.1), optax.adam(1e-2)))",
    "averaged updates": "sparsify(optax.chain(optax.adam(1e-2), optax.ema(0.9)))",
    "`optax.masked`": "sparsify(optax.chain(optax.masked(optax.add_decayed_weights(1e-3), "
    '{"layer_0": True, "layer_1": False}), optax.adam(1e-2)))',
    "after a chain": "optax.chain(optax.zero_nans(), sparsify(optax.adam(1e-2)))",
}


def make(use: str) -> Any:
    def sparsify(tx: Any) -> Any:
        return rlx2.sparsify(tx, SPARSITY, **PLAN)

    return eval(use, {"optax": optax, "rlx2": rlx2, "sparsify": sparsify})


@rows("Optimizers", OPTIMIZERS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name):
    x, y = task()
    tx = make(OPTIMIZERS[name])
    params = network(jax.random.key(0))
    trained, state, losses = fit(tx, params, lambda p: loss(p, x, y))
    check_links(trained, state)
    check_moved(tx.init(params), state)
    check_learned(losses)
    if name == "schedule-free":  # evaluate its average
        (inner,) = [s for s in jax.tree.leaves(state, is_leaf=is_free) if is_free(s)]
        average = optax.contrib.schedule_free_eval_params(inner, trained)
        check_links(average, state)
        assert float(loss(average, x, y)) < 0.6 * float(losses[0])


def is_free(x: Any) -> bool:
    return isinstance(x, optax.contrib.ScheduleFreeState)
