"""Which rule an engine runs: what is read from environment and configuration, and refused."""

from pathlib import Path

import pytest

from speculative_lab_vllm.choice import Choice, choose, read_rule
from theory import RULES, make_rule

HALF = """
from dataclasses import dataclass

from theory import TargetRule, register


@register
@dataclass(frozen=True)
class Half(TargetRule):
    share: float = 0.5
    name = "half_in_vllm"

    def target(self, pair):
        return (1 - self.share) * pair.q + self.share * pair.p
"""


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("sps", make_rule("sps")),
        ("cactus:delta=0.1", make_rule("cactus", delta=0.1)),
        (" frontier : level=1e-1, divergence=js ", make_rule("frontier", level=0.1,
                                                           divergence="js")),
        ("top_k:k=3", make_rule("top_k", k=3)),
        ("cactus_target_only:delta=0.2,exact=true",
         make_rule("cactus_target_only", delta=0.2, exact=True)),
    ],
)  # fmt: skip
def test_a_rule_is_read_with_its_parameters(text, rule):
    assert read_rule(text) == rule


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cactsu:delta=0.1", "unknown rule 'cactsu'; did you mean 'cactus'"),
        ("cactus", "rule 'cactus' needs the parameter 'delta'"),
        ("cactus:delta", "'delta' is not like delta=0.1"),
        ("cactus:delta=0.1,delta=0.2", "gives 'delta' twice"),
        ("cactus:delta=-1", r"delta must lie in \[0, inf\], got -1"),
        ("cactus:deltas=1", "has no parameter 'deltas'; did you mean 'delta'"),
        ("cascade_chow:alpha=0.1", "reads the rows before temperature and filters"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(text, told):
    with pytest.raises(ValueError, match=told) as caught:
        read_rule(text)
    assert "\n" not in str(caught.value)


def test_the_environment_and_the_configuration_choose_alike():
    options = {"rule": "cactus:delta=0.1", "report": "out.jsonl", "realised": "0"}
    chosen = Choice(make_rule("cactus", delta=0.1), Path("out.jsonl"), False)
    names = {f"SPECULATIVE_LAB_{name.upper()}": value for name, value in options.items()}
    assert choose(None, names) == chosen
    assert choose({"speculative_lab": options}, {}) == chosen
    assert choose({"speculative_lab": {**options, "realised": False}}, {}) == chosen
    assert choose({"speculative_lab": options}, names) == chosen
    assert choose({"speculative_lab": {"rule": "sps"}}, {}) == Choice(make_rule("sps"))


@pytest.mark.parametrize("additional", [None, {}, {"other": 1}, object()])
def test_nothing_is_chosen_where_nobody_asked(additional):
    assert choose(additional, {"SPECULATIVE_LAB_RULE": ""}) is None


@pytest.mark.parametrize(
    ("additional", "names", "told"),
    [
        (
            {"rule": "sps"},
            {"RULE": "cactus:delta=1"},
            "is 'cactus:delta=1' and speculative",
        ),
        ({"rules": "sps"}, {}, "has no 'rules'; it knows rule, import, report, realised"),
        ("sps", {}, "must hold rule, import, report, realised by name, got 'sps'"),
        ({"report": "x"}, {}, "report given for vLLM, but no rule"),
        ({"rule": "sps", "report": "no/such/out.jsonl"}, {}, "no file in a folder that is there"),
        ({"rule": "sps", "report": "."}, {}, r"report '\.' is no file"),
        ({"rule": "sps", "realised": "maybe"}, {}, "realised must be 0 or 1, got 'maybe'"),
    ],
)
def test_mistakes_are_told_in_one_line(additional, names, told):
    environment = {f"SPECULATIVE_LAB_{name}": value for name, value in names.items()}
    with pytest.raises(ValueError, match=told) as caught:
        choose({"speculative_lab": additional}, environment)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("forgotten")
def test_rules_of_ones_own_are_imported(tmp_path):
    file = tmp_path / "half_in_vllm.py"
    file.write_text(HALF, encoding="utf-8")
    options = {"rule": "half_in_vllm:share=0.25", "import": f"{file}"}
    assert choose({"speculative_lab": options}, {}).rule.parameters == {"share": 0.25}


def test_a_rule_that_emits_no_distribution_is_refused(monkeypatch):
    class Wrong(type(make_rule("sps"))):
        name = "wrong_in_vllm"

        def target(self, pair):
            return 0.5 * pair.q

    monkeypatch.setitem(RULES, "wrong_in_vllm", Wrong)
    with pytest.raises(ValueError, match=r"the sum of the output must be 1, got 0\.5"):
        read_rule("wrong_in_vllm")


def test_a_file_that_is_not_there_is_told():
    options = {"rule": "sps", "import": "no/such/half.py"}
    with pytest.raises(ValueError, match=r"--import no/such/half\.py: No such file"):
        choose({"speculative_lab": options}, {})
