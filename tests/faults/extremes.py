"""Command lines of extreme flag values, drawn with a seed."""

import random
from collections.abc import Iterator

from rlx2_jax.cli import setting_flags
from rlx2_jax.option_table import CHOICES, CONFIG, RUN
from rlx2_jax.options import Option

NASTY = (
    *("-1", "0", "1", "2", "2147483647", "2147483648", "4294967296", "1000000000000", "9" * 5000),
    *("nan", "inf", "-inf", "1e308", "1e400", "-1e39", "1e-320", "0.5", "1.0", "-0.0", "1e6"),
    *("", " ", ",", "1,,2", "1,1", "1,2,3", " 1 ", "abc", "ébène", "😀", "٣", "0x10", "1_000"),
    *("None", "true", "[1]", '"', "'", "--", "=", "a=b", "\n", "\udce9", "../..", "%s", "{0}"),
)
# Values near the edge of what is allowed: sizes, and lists.
MILD = {
    "env": ("Hopper-v5", "Hopper-v9", "hopper", "CartPole-v1", "Pendulum-v1", "a:b", "rlx2_jax/x"),
    "env_backend": ("gymnasium", "brax", "envpool"),
    "algo": ("td3", "sac"),
    "preset": ("default", "paper", "reference"),
    "execution": ("auto", "masked", "compact"),
    "logdir": ("/proc/none", "/dev/null/run", "x" * 300, "runs/new"),
    "method": ("dense", "rlx2, rigl", "tiny,ss,set", "rlx2-tiny", "rlx2,rlx2"),
    "hidden": ("1", "3,5", "1000000", "1,1000000", "8," * 40 + "8", "4096,4096"),
    "width": ("8", "16384"),
    "blocks": ("1", "64"),
    "batch_size": ("7", "100000", "10000000"),
    "num_envs": ("3", "64", "65536"),
    "steps": ("1", "2", "100", "100000000"),
    "warmup": ("5", "1999", "3000000"),
    "capacity": ("5", "999", "100000000", "10000000000"),
    "seeds": ("4", "300", "1024"),
    "first_seed": ("2147483646",),
    "utd": ("2", "0.25", "1e9", "65536"),
    "episodes": ("3", "5000", "65536"),
    "keep": ("3", "1000000"),
    "chunk": ("3", "1024"),
    "n": ("3", "17", "5000", "1,2,3,4,5,6,7,8,9"),
    "actor_sparsity": ("0.99", "0.999999", "0,0.5", "1"),
    "critic_sparsity": ("0.99", "0.9999999999", "0"),
    "b_min": ("10", "999999"),
    "b_max": ("50", "3,1000", "100000000"),
    "mask_interval": ("7", "10,2147483647", "10007"),
    "buffer_interval": ("7", "10,2147483647"),
    "learning_rate": ("1e-45", "3e38", "0.001,0.002"),
}
# Defaults for a run that starts quickly.
SMALL = {
    "steps": "2000",
    "warmup": "20",
    "hidden": "8,8",
    "batch_size": "8",
    "episodes": "1",
    "metrics_interval": "50",
}
# Accepted, and near the limits of counters, buffers and floats.
NEVER = 2**31 - 1
EDGES = (
    f"--mask_interval={NEVER} --t_end={NEVER} --t0={NEVER} --buffer_interval={NEVER} "
    f"--first_seed={NEVER}",
    f"--policy_delay={NEVER} --target_interval={NEVER} --learning_rate=3e38 --target_noise=3e38 "
    "--exploration_noise=3e38 --oldest_k=1",
    "--algo=sac --target_entropy=-3e38 --utd=16 --n=17 --capacity=23 --b_min=17 --hidden=1 "
    "--method=dense,tiny",
    "--num_envs=64 --warmup=1280 --utd=0.25 --tau=1 --discount=1 --d0=0 --buffer_interval=1 "
    "--b_min=192 --trim_ratio=1 --mask_interval=1 --zeta0=1 --t0=0",
    "--preset=paper --b_max=30 --b_min=3 --d0=0 --buffer_interval=1 --mask_interval=1 "
    "--trim_ratio=1 --t0=0 --regrow=forbid",
    "--preset=reference --algo=sac --actor_sparsity=0 --critic_sparsity=0 --mask_interval=1 "
    "--chunk=1 --seeds=2",
)
OTHERS = ("env", "env_backend", "preset", "execution", "logdir")
SWITCHES = (
    "--paper_sparsity",
    "--nopipeline",
    "--demo",
    "--resume",
    "--unknown",
    "word",
    "--hidden",
)


def options() -> dict[str, Option | None]:
    """All flags that take a value."""
    single = {o.name: o for o in (*CONFIG.values(), *RUN.values()) if o.flag}
    lanes = {o.name: o for o in setting_flags.LANE_FLAGS}
    return {**dict.fromkeys(OTHERS), **single, **CHOICES, **lanes}


def values(name: str, option: Option | None) -> tuple[str, ...]:
    """Extreme values of one flag."""
    own = MILD.get(name, ())
    if option is None:
        return (*NASTY, *own)
    if option.kind == "choice":
        return (*NASTY, *own, *option.allowed)
    if option.kind == "bool":
        return (*NASTY, *own, "false", "True")
    least, most = int(option.least or 0), NEVER if option.most is None else int(option.most)
    return (*NASTY, *own, str(least), str(least - 1), str(most), str(most + 1))


def singles() -> Iterator[list[str]]:
    """Every extreme value of every flag, one at a time."""
    for name, option in options().items():
        for value in dict.fromkeys(values(name, option)):
            yield small([f"--{name}={value}"])
    for switch in SWITCHES:
        yield small([switch])


def combinations(count: int, seed: int) -> Iterator[list[str]]:
    """`count` command lines of two to five flags; half of their values are near what is allowed,
    so that some of the command lines are accepted."""
    rng, known = random.Random(seed), options()
    for _ in range(count):
        flags = []
        for name in rng.sample(sorted(known), rng.randint(2, 5)):
            every = values(name, known[name])
            allowed = every[len(NASTY) :]
            value = rng.choice(allowed if allowed and rng.random() < 0.85 else every)
            flags.append(f"--{name}={value}")
        flags += rng.sample(SWITCHES, rng.random() < 0.1)
        yield small(flags)


def small(flags: list[str]) -> list[str]:
    """The flags, preceded by the defaults that they do not override."""
    given = {flag.split("=")[0].removeprefix("--") for flag in flags}
    return [f"--{k}={v}" for k, v in SMALL.items() if k not in given] + flags
