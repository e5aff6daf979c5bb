"""The catalogue of experiments: its units, their scaling, their distribution."""

import dataclasses

import pytest

from experiments import paper, suites
from experiments.suites import base
from rlx2_jax import config
from rlx2_jax.training import launch

pytestmark = pytest.mark.fast

PAPER, SHORT, SMOKE = (suites.BUDGETS[x] for x in ("paper", "short", "smoke"))
ALL = [(s, b) for s in suites.CATALOGUE.values() for b in (PAPER, SHORT, SMOKE)]


@pytest.mark.parametrize(("suite", "budget"), ALL, ids=lambda x: x.name)
def test_every_unit_can_be_run(suite, budget):
    units = suite.units(budget)
    names = [unit.name for unit in units]
    assert len(set(names)) == len(names) and (units or suite.name == "flops")
    for i, unit in enumerate(units):
        assert set(unit.needs) <= set(names[:i])  # what is needed comes before
        run = launch.make_run(unit.settings, unit.lanes)
        seeds = {lane.seed for lane in unit.lanes}
        one = unit.group and unit.lanes[0].method == "dense"
        assert len(seeds) == (1 if one else budget.seeds) and len(run.lanes) == len(unit.lanes)
        assert seeds <= set(budget.seed_range()) or suite.name == "mask_init"
        for file in (f for x in unit.lanes for f in (x.weights, x.masks, x.expert) if f):
            owner, folder, lane = file.removeprefix("../").split("/")
            assert owner in unit.needs and folder in ("initial", "final")
            donor = units[names.index(owner)].lanes[int(lane[5:-4])]
            assert donor.seed in seeds


@pytest.mark.parametrize("suite", suites.CATALOGUE.values(), ids=lambda x: x.name)
def test_every_variant_has_all_seeds(suite):
    found: dict = {}
    for unit in suite.units(SHORT):
        for lane in unit.lanes:
            key = (unit.kind, unit.group or unit.name, lane.name, lane.actor_sparsity)
            found.setdefault(key, []).append(lane.seed)
    twice = 2 if suite.name == "mask_init" else 1
    for seeds in found.values():
        assert sorted(seeds) == list(range(twice * SHORT.seeds))


def test_lanes_begin_with_the_donor_of_the_same_seed():
    for name in ("masks", "tickets", "toy"):
        units = {unit.name: unit for unit in suites.CATALOGUE[name].units(PAPER)}
        for unit in units.values():
            for lane in unit.lanes:
                for file in filter(None, (lane.weights, lane.masks, lane.expert)):
                    owner, _, donor = file.removeprefix("../").split("/")
                    found = units[owner].lanes[int(donor[5:-4])]
                    assert found.seed == lane.seed
                    if lane.masks and file == lane.masks:
                        assert (found.name in lane.name) or found.name == "dynamic ticket"
                        assert found.critic_sparsity == lane.critic_sparsity
                    if file == lane.expert:
                        assert found.method == "dense"


def test_the_papers_schedule():
    units = [u for u in suites.CATALOGUE["table2"].units(PAPER) if u.group == "td3-hopper"]
    methods = [{lane.method for lane in u.lanes} for u in units]
    assert methods == [{"dense"}] * 8 + [{"tiny"}, {"ss"}, {"set"}, {"rigl"}, {"rlx2"}]
    run = launch.make_run(units[-1].settings, units[-1].lanes)
    assert len(run.lanes) == 8 and run.env == "Hopper-v5" and run.config.steps == 3_000_000
    assert (run.eval_interval, run.episodes, run.config.warmup) == (5000, 10, 25_000)
    rlx2 = run.lanes[0]
    assert (rlx2.actor_sparsity, rlx2.critic_sparsity) == (0.98, 0.95)
    default = config.resolve(run.config, config.Lane())
    for field in ("t0", "mask_interval", "buffer_interval", "d0", "n", "zeta0", "b_min", "b_max"):
        assert getattr(rlx2, field) == getattr(default, field), field


def test_short_scales_everything_that_counts_steps():
    unit = suites.CATALOGUE["table2"].units(SHORT)[8]
    lane = unit.lanes[0]
    assert lane.method == "rlx2"
    settings = unit.settings
    assert (settings.steps, settings.warmup, settings.eval_interval) == (300_000, 2500, 500)
    assert (lane.t0, lane.mask_interval, lane.buffer_interval) == (30_000, 1000, 1000)
    assert (lane.b_min, lane.b_max, lane.d0) == (10_000, 100_000, 0.2)


def test_suites_have_the_papers_cases():
    def names(suite: str) -> set[str]:
        return {lane.name for unit in suites.CATALOGUE[suite].units(PAPER) for lane in unit.lanes}

    assert names("nstep") == {"dense"} | {
        f"{r['n_step']}-step" for r in paper.load("ablation_nstep")
    }
    assert len(names("buffer")) == 1 + len({r["capacity"] for r in paper.load("ablation_buffer")})
    for parameter in ("zeta0", "mask_interval", "buffer_interval", "d0", "t0"):
        values = {r[parameter] for r in paper.load(f"sensitivity_{parameter}")}
        ours = {n for n in names("sensitivity") if n.startswith(f"{parameter}=")}
        # The default and the extreme case have separate lanes.
        assert len(values) - len(ours) == 2


def _lanes_of_a_group(suite: str, group: str) -> dict:
    units = [u for u in suites.CATALOGUE[suite].units(PAPER) if u.group == group]
    return {x.name: x for u in units for x in launch.make_run(u.settings, u.lanes).lanes}


def test_extreme_cases_match_their_names():
    lanes = _lanes_of_a_group("sensitivity", "td3-hopper")
    assert lanes["static"].zeta0 == 0 and lanes["no adjustment"].trim_ratio == 0
    assert lanes["one-step"].t0 > 3_000_000 and lanes["t0=0"].t0 == 0
    assert lanes["mask_interval=1000"].mask_interval == 1000 and lanes["default"].zeta0 == 0.5
    sizes = {k: x.b_max for k, x in _lanes_of_a_group("buffer", "td3-halfcheetah").items()}
    assert sizes["unlimited"] == 3_000_000 and sizes["5e4"] == 50_000


def test_shards_share_out_all_units_and_keep_those_that_need_each_other():
    for suite in suites.CATALOGUE.values():
        units = suite.units(PAPER)
        for count in (1, 2, 3, 7):
            parts = [base.shard(units, i, count) for i in range(count)]
            names = [unit.name for part in parts for unit in part]
            assert sorted(names) == sorted(unit.name for unit in units)
            for part in parts:
                for i, unit in enumerate(part):
                    assert set(unit.needs) <= {u.name for u in part[:i]}


def test_names_of_suites():
    assert len(suites.find(["all"])) == 14
    assert [s.name for s in suites.find(["toy", "flops"])] == ["toy", "flops"]
    with pytest.raises(ValueError, match="unknown suite tabel2: use one or more of table2"):
        suites.find(["tabel2"])


def test_budgets_can_be_changed():
    budget = dataclasses.replace(SHORT, seeds=2, first_seed=5, tasks=2)
    units = suites.CATALOGUE["nstep"].units(budget)
    assert list(dict.fromkeys(u.group for u in units)) == ["td3-hopper", "td3-walker2d"]
    assert [u.name for u in units[:2]] == ["td3-hopper-dense-5", "td3-hopper-dense-6"]
    assert [{lane.seed for lane in u.lanes} for u in units[:3]] == [{5}, {6}, {5, 6}]


def test_equal_units_of_suites_live_in_the_main_table():
    def homes(name: str) -> dict[str, str]:
        units = suites.units(suites.CATALOGUE[name], PAPER)
        return {u.name: u.home_name for u in units if u.home and u.group == "td3-hopper"}

    assert not homes("table2")
    dense = {f"td3-hopper-dense-{seed}": f"td3-hopper-dense-{seed}" for seed in range(8)}
    assert homes("nstep") == {**dense, "td3-hopper-3-step": "td3-hopper-rlx2"}
    assert homes("topology").keys() == {*dense, "td3-hopper-rlx2"}
    assert homes("buffer").keys() == {*dense, "td3-hopper-dynamic"}
    assert homes("buffer_trace").keys() == {"td3-hopper-dynamic"}
    assert homes("sensitivity")["td3-hopper-default"] == "td3-hopper-rlx2"
    assert homes("mask_init").keys() == {"td3-hopper-rlx2-random-0", "td3-hopper-ss-random-0"}
    (figure,) = suites.units(suites.CATALOGUE["mask_figures"], PAPER)
    assert figure.directory == "../table2/td3-ant-rlx2"


def test_shared_units_make_equal_runs():
    """A unit that lives in the main table resolves to the run that the table trains."""
    main = {u.name: u for u in suites.CATALOGUE["table2"].units(PAPER)}
    for suite in suites.CATALOGUE.values():
        for unit in suites.units(suite, PAPER):
            if unit.home and unit.group == "td3-hopper":
                one, two = (
                    launch.make_run(u.settings, u.lanes) for u in (unit, main[unit.home_name])
                )
                plain = [[dataclasses.replace(x, name=None) for x in r.lanes] for r in (one, two)]
                assert plain[0] == plain[1] and one.config == two.config
