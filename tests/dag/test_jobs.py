"""What a grid plans: how many jobs of each rule, which, and what each is made from."""

import re
from pathlib import Path

import pytest

from support import PLANNED, ROOT, Plan, config, job, plan

pytestmark = pytest.mark.xdist_group("dag")

# 10 targets x 4 sizes x 2 inits x 4 rewards = 320 cells; a warm-up a target and size; evaluations:
# 40 base models, 40 warm-ups, 320 cells. The refusal detector comes from the hub.
PAPER = PLANNED | {
    "evaluate_refusal_detectors": 1,
    "load_rows": 30,
    "render_rwku": 40,
    "write_knowledge": 10,
    "split_target": 10,
    "write_broad_answers": 10,
    "train_warmup": 40,
    "train_grpo": 320,
    "generate_base_rows": 4,
    "generate_completions": 400,
    "sample_completions": 400,
    "audit_completions": 400,
    "audit_samples": 400,
    "audit_rollouts": 320,
    "score_likelihoods": 400,
    "evaluate_rwku": 400,
}

# 2 targets x 1 size x 2 inits x 4 rewards = 16 cells; evaluations: 2 base, 2 warm-ups, 16 cells.
DEMO = PLANNED | {
    "evaluate_refusal_detectors": 1,
    "build_demo_world": 1,
    "load_rows": 6,
    "render_rwku": 2,
    "write_knowledge": 2,
    "split_target": 2,
    "train_refusal_detector": 1,
    "write_broad_answers": 2,
    "train_warmup": 2,
    "train_grpo": 16,
    "generate_completions": 20,
    "sample_completions": 20,
    "audit_completions": 20,
    "audit_samples": 20,
    "audit_again": 20,
    "audit_rollouts": 16,
    "score_likelihoods": 20,
    "evaluate_rwku": 20,
}

REWARDS = ["r0-lex", "r1-antirefusal", "r2-rubric", "r4-refusal"]
DETECTOR = "results/detector/demo-refusal/manifest.json"


def cells_of(found: Plan) -> list[dict[str, str]]:
    return found.of("train_grpo")


def policy(cell: dict[str, str]) -> str:
    return "grpo/{size}/{target}/{init}/{reward}/s{seed}".format(**cell)


def test_the_papers_grid_has_exactly_these_jobs(paper: Plan) -> None:
    assert paper.counts == PAPER
    assert sum(paper.counts.values()) == 3199


def test_the_demo_has_exactly_these_jobs(demo: Plan) -> None:
    assert demo.counts == DEMO
    assert sum(demo.counts.values()) == 205


def test_all_is_what_runs_without_a_target(demo: Plan, directory: Path) -> None:
    assert plan(ROOT / "config" / "demo.yaml", directory, targets=()).jobs == demo.jobs


@pytest.mark.parametrize("name", ["paper", "demo"])
def test_cells_are_the_product_of_the_axes(name: str, request: pytest.FixtureRequest) -> None:
    found: Plan = request.getfixturevalue(name)
    grid = config("config" if name == "paper" else name)["grid"]
    expected = {
        job("train_grpo", size=size, target=target, init=init, reward=reward, seed=str(seed))
        for size in grid["sizes"]
        for target in grid["targets"]
        for init in grid["inits"]
        for reward in grid["rewards"]
        for seed in grid["seeds"]
    }
    assert {entry for entry in found.jobs if entry[0] == "train_grpo"} == expected


@pytest.mark.parametrize("name", ["paper", "demo"])
def test_a_warm_cell_starts_from_its_warm_up_and_a_cold_one_from_none(
    name: str, request: pytest.FixtureRequest
) -> None:
    found: Plan = request.getfixturevalue(name)
    for cell in cells_of(found):
        started = [p for p in found.inputs[job("train_grpo", **cell)] if "/warmup/" in p]
        own = "results/warmup/{size}/{target}/s{seed}/manifest.json".format(**cell)
        assert started == ([own] if cell["init"] == "warm" else []), cell


def test_a_cell_depends_on_what_its_reward_uses_and_no_more(demo: Plan) -> None:
    for cell in cells_of(demo):
        inputs = set(demo.inputs[job("train_grpo", **cell)])
        knowledge = f"results/data/{cell['target']}/knowledge/manifest.json"
        expected = {
            "results/world/manifest.json",
            f"results/data/{cell['target']}/split/manifest.json",
        }
        if cell["init"] == "warm":
            expected.add("results/warmup/{size}/{target}/s{seed}/manifest.json".format(**cell))
        if cell["reward"] in ("r1-antirefusal", "r2-rubric", "r4-refusal"):
            expected.add(DETECTOR)
        if cell["reward"] == "r2-rubric":
            expected.add(knowledge)
        assert inputs == expected, cell


def test_a_lexical_cell_needs_neither_detector_nor_judge(directory: Path) -> None:
    target = "results/grpo/tiny/karl-marx/cold/r0-lex/s0/manifest.json"
    found = plan(ROOT / "config" / "demo.yaml", directory, targets=[target])
    assert found.counts == {
        "build_demo_world": 1,
        "load_rows": 1,
        "split_target": 1,
        "train_grpo": 1,
    }


@pytest.mark.parametrize("name", ["paper", "demo"])
def test_every_policy_is_evaluated_and_a_base_model_on_every_target(
    name: str, request: pytest.FixtureRequest
) -> None:
    found: Plan = request.getfixturevalue(name)
    grid = config("config" if name == "paper" else name)["grid"]
    expected = {(f"base/{size}", t) for size in grid["sizes"] for t in grid["targets"]}
    expected |= {
        ("warmup/{size}/{target}/s{seed}".format(**warm), warm["target"])
        for warm in found.of("train_warmup")
    }
    expected |= {(policy(cell), cell["target"]) for cell in cells_of(found)}
    for rule in (
        "generate_completions",
        "sample_completions",
        "audit_samples",
        "score_likelihoods",
        "audit_completions",
        "evaluate_rwku",
    ):
        assert {(e["policy"], e["target"]) for e in found.of(rule)} == expected


@pytest.mark.parametrize("name", ["paper", "demo"])
def test_an_evaluation_is_made_from_its_own_policy_and_target(
    name: str, request: pytest.FixtureRequest
) -> None:
    found: Plan = request.getfixturevalue(name)
    own_model = ["results/world/manifest.json"] if name == "demo" else []
    detector = [DETECTOR] if name == "demo" else []
    for facts in found.of("generate_completions"):
        rows = f"results/data/{facts['target']}"
        trained = [f"results/{facts['policy']}/manifest.json"]
        size = facts["policy"].split("/")[1]
        prompts = [f"results/prompts/{size}/on/{facts['target']}/manifest.json"]
        made_from = [] if facts["policy"].startswith("base/") else trained
        made_from = sorted([*made_from, *prompts, *own_model])
        assert sorted(found.inputs[job("score_likelihoods", **facts)]) == made_from
        split = [f"{rows}/split/manifest.json"]
        shared = name == "paper" and facts["policy"].startswith("base/")
        split += [f"results/base_rows/{size}/rows.json"] if shared else []
        assert sorted(found.inputs[job("generate_completions", **facts)]) == sorted(
            made_from + split
        )
        assert sorted(found.inputs[job("sample_completions", **facts)]) == sorted(
            {*made_from, *split} - set(prompts)
        )
        completions = "results/completions/{policy}/on/{target}/manifest.json".format(**facts)
        # A judge behind an API is given the name; one that works by rules must know the target.
        known = [f"{rows}/knowledge/manifest.json"]
        knowledge = known if name == "demo" else []
        samples = "results/samples/{policy}/on/{target}/manifest.json".format(**facts)
        judge = "audit" if name == "demo" else "lower-bound"
        assert sorted(found.inputs[job("audit_samples", judge=judge, **facts)]) == sorted(
            [completions, samples, *known]
        )
        assert sorted(found.inputs[job("audit_completions", **facts)]) == sorted(
            [completions, *knowledge, *detector]
        )
        likelihoods = "results/likelihoods/{policy}/on/{target}/manifest.json".format(**facts)
        assert sorted(found.inputs[job("evaluate_rwku", **facts)]) == sorted(
            [*prompts, completions, likelihoods]
        )


@pytest.mark.parametrize("name", ["paper", "demo"])
def test_every_edge_is_a_manifest_and_every_file_has_one_maker(
    name: str, request: pytest.FixtureRequest
) -> None:
    found: Plan = request.getfixturevalue(name)
    made = [path for paths in found.outputs.values() for path in paths]
    assert len(made) == len(set(made))
    for (rule, wildcards), paths in found.inputs.items():
        for path in paths:
            assert path in made, f"{rule} {dict(wildcards)}: {path}"
            hint = re.fullmatch(r"results/base_rows/[^/]+/rows.json", path)  # `ancient`
            assert path.endswith("/manifest.json") or rule == "all" or hint, f"{rule}: {path}"


def test_tables_are_made_from_the_plan_and_every_result_they_show(demo: Plan) -> None:
    trained = {f"results/{policy(cell)}/manifest.json" for cell in cells_of(demo)}
    trained |= {
        "results/warmup/{size}/{target}/s{seed}/manifest.json".format(**warm)
        for warm in demo.of("train_warmup")
    }

    def stage(name: str) -> set[str]:
        return {
            f"results/{name}/{e['policy']}/on/{e['target']}/manifest.json"
            for e in demo.of("generate_completions")
        }

    plan_file = {"results/plan/manifest.json"}
    expected = {
        "build_training_table": plan_file | trained,
        "plot_training_dynamics": plan_file | trained,
        "build_heldout_audit_table": plan_file | trained | stage("audit"),
        "build_terminal_audit_table": plan_file
        | trained
        | {p for p in stage("terminal") if "/grpo/" in p},
        "build_leak_at_k_table": plan_file | trained | stage("sampled/audit"),
        "build_sampled_audit_table": plan_file | trained | stage("sampled/audit"),
        "plot_leak_at_k": plan_file | trained | stage("sampled/audit"),
        "build_judge_agreement_table": plan_file
        | trained
        | stage("audit")
        | stage("opinions/lower-bound/r0"),
        "build_rwku_core_table": plan_file | trained | stage("rwku"),
        "build_rwku_utility_table": plan_file | trained | stage("rwku"),
        "build_rwku_types_table": plan_file | trained | stage("rwku"),
    }
    for rule, inputs in expected.items():
        assert set(demo.inputs[job(rule)]) == inputs, rule
    assert demo.inputs[job("write_plan")] == ()


def test_weighted_terms_are_made_for_the_reward_that_needs_them(directory: Path) -> None:
    changed = config("demo")
    changed["grid"] |= {"rewards": ["r0-lex", "r3-fuzzy", "pagerank-lex"], "inits": ["cold"]}
    changed["term_weights"] = {"size": "tiny"}
    found = plan(changed, directory)
    assert found.counts["weigh_terms"] == 2
    for cell in cells_of(found):
        weights = f"results/data/{cell['target']}/term_weights/manifest.json"
        inputs = found.inputs[job("train_grpo", **cell)]
        assert (weights in inputs) == (cell["reward"] == "pagerank-lex"), cell
    for target in ("bruce-lee", "karl-marx"):
        weighed = found.inputs[job("weigh_terms", target=target)]
        assert weighed == ("results/world/manifest.json",)


def test_further_opinions_are_asked_by_judge_and_replicate(directory: Path) -> None:
    changed = config("config")
    changed["judges"]["second"] = changed["judges"]["audit"] | {"model": "other"}
    changed["agreement"] = {"judges": ["second"], "replicates": 2, "max_prompts": 5}
    changed["grid"] |= {"sizes": ["7b"], "inits": ["cold"], "targets": ["karl-marx"]}
    found = plan(changed, directory)
    asked = {(w["judge"], w["replicate"], w["policy"]) for w in found.of("audit_again")}
    policies = {w["policy"] for w in found.of("audit_completions")}
    opinions = {("second", "0"), ("audit", "1"), ("audit", "2")}
    assert asked == {(*opinion, policy) for opinion in opinions for policy in policies}


def test_a_paid_judge_of_samples_sees_what_is_listed(directory: Path) -> None:
    changed = config("config")
    changed["sampled_audit"]["opinions"] = [
        {"judge": "audit", "where": {"size": "7b", "reward": "r2-rubric"}},
        {"judge": "audit", "where": {"kind": "base", "target": "karl-marx"}},
        {"judge": "audit", "where": {"target": "karl-marx", "reward": "r2-rubric"}},
    ]
    changed["grid"] |= {"sizes": ["3b", "7b"], "inits": ["cold"]}
    changed["grid"]["targets"] = ["karl-marx", "tom-clancy"]
    found = plan(changed, directory)
    paid = {(w["policy"], w["target"]) for w in found.of("audit_samples") if w["judge"] == "audit"}
    cells = {
        f"grpo/{size}/{target}/cold/r2-rubric/s1234"
        for size, target in (("7b", "karl-marx"), ("7b", "tom-clancy"), ("3b", "karl-marx"))
    }
    assert {policy for policy, _ in paid} == {*cells, "base/3b", "base/7b"}
    assert {target for policy, target in paid if policy.startswith("base/")} == {"karl-marx"}
    free = [w for w in found.of("audit_samples") if w["judge"] == "lower-bound"]
    assert len(free) == len(found.of("generate_completions"))


def test_a_table_without_evaluations_plans_none(directory: Path) -> None:
    found = plan(
        ROOT / "config" / "demo.yaml", directory, targets=["results/tables/training.parquet"]
    )
    assert not {"generate_completions", "score_likelihoods", "audit_completions"} & found.rules
    assert found.counts["train_grpo"] == 16


def test_one_audit_plans_its_own_chain_only(directory: Path) -> None:
    target = "results/audit/grpo/tiny/bruce-lee/warm/r1-antirefusal/s0/on/bruce-lee/manifest.json"
    found = plan(ROOT / "config" / "demo.yaml", directory, targets=[target])
    assert found.counts == {
        "build_demo_world": 1,
        "load_rows": 5,  # the detector is trained on the rows of both targets
        "write_knowledge": 2,
        "render_rwku": 1,
        "split_target": 1,
        "train_refusal_detector": 1,
        "write_broad_answers": 1,
        "train_warmup": 1,
        "train_grpo": 1,
        "generate_completions": 1,
        "audit_completions": 1,
    }


def test_partial_plans_no_training_and_all_plans_no_partial(demo: Plan, directory: Path) -> None:
    found = plan(ROOT / "config" / "demo.yaml", directory, targets=["partial"])
    assert found.counts == {"write_plan": 1, "build_partial": 1, "partial": 1}
    assert not {"partial", "build_partial"} & demo.rules
    both = plan(ROOT / "config" / "demo.yaml", directory, targets=["partial", "all"])
    assert both.jobs == found.jobs | demo.jobs


def test_a_result_outside_the_grid_has_no_rule(directory: Path) -> None:
    for path in (
        "results/grpo/tiny/nobody/cold/r0-lex/s0/manifest.json",
        "results/grpo/tiny/bruce-lee/lukewarm/r0-lex/s0/manifest.json",
        "results/grpo/tiny/bruce-lee/cold/r9-none/s0/manifest.json",
        "results/completions/base/tiny/more/on/bruce-lee/manifest.json",
    ):
        with pytest.raises(AssertionError, match="MissingRuleException"):
            plan(ROOT / "config" / "demo.yaml", directory, targets=[path])


def test_size_names_with_a_dot_are_matched_literally(directory: Path) -> None:
    path = "results/grpo/0x5b/bruce-lee/cold/r0-lex/s1234/manifest.json"
    with pytest.raises(AssertionError, match="MissingRuleException"):
        plan(ROOT / "config" / "config.yaml", directory, targets=[path])
