"""The adapters of samplers that are in use, and the tables that are made of what was found."""

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from integrations.audits import page
from integrations.audits.ours import decoder_sampler
from integrations.audits.records import RESULTS, Case, run
from integrations.audits.sglang_kernel import KERNEL, kernel_file
from integrations.audits.transformers_assisted import (
    LENGTH,
    VOCABULARY,
    generations,
    p_value,
    rejection_sampler,
    text_law,
)
from real_models.laws.distributions import SamplingSettings
from sim.audit import audit
from theory import make_rule

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {"samples": 2_000, "backend": "torch"}


@pytest.mark.parametrize("rule", [make_rule("sps"), make_rule("cactus", delta=0.3)], ids=str)
def test_the_projects_own_decoder_passes(rule):
    assert not audit(decoder_sampler(rule), rule, **OPTIONS).rejected


def test_the_projects_own_decoder_is_no_other_rule():
    assert audit(
        decoder_sampler(make_rule("cactus", delta=0.3)), make_rule("sps"), **OPTIONS
    ).rejected


@pytest.mark.parametrize(
    ("weight", "rule", "right"),
    [
        (None, make_rule("sps"), True),
        (0.7, make_rule("interpolation", alpha=0.3), True),
        (0.7, make_rule("sps"), False),
    ],
)
def test_transformers_rejection_sampling(weight, rule, right):
    options = {**OPTIONS, "dtype": "float32", "rounding": 1e-4}
    assert audit(rejection_sampler(weight), rule, **options).rejected != right


def test_the_law_of_texts_is_one_and_generations_follow_it():
    """A few texts only: whether the two sides speak of the same texts. Level 1e-6."""
    settings = SamplingSettings(0.6, top_k=3)
    law = text_law(settings)
    assert law.shape == (VOCABULARY,) * LENGTH
    assert law.sum() == pytest.approx(1)
    assert p_value(generations(settings, 20), law) > 1e-6


def test_the_p_value_of_texts_tells_laws_apart():
    law = np.array([[0.5, 0.3], [0.2, 0.0]])
    draws = np.random.default_rng(0).choice(4, size=1000, p=law.ravel())
    texts = np.stack(np.divmod(draws, 2), axis=1)
    assert p_value(texts, law) > 1e-6
    assert p_value(texts, law.T) < 1e-12
    assert p_value(np.array([[1, 1]]), law) == 0


def test_one_file_of_a_wheel_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr(KERNEL, "x = 1")
        archive.writestr("other.py", "")
    assert kernel_file(tmp_path / "a.whl", tmp_path / "out").read_text(encoding="utf-8") == "x = 1"
    assert [file.name for file in (tmp_path / "out").rglob("*.py")] == ["reject_sampling.py"]


def test_audits_are_told_and_kept(tmp_path, capsys):
    rule = make_rule("sps")
    cases = [Case("mine", decoder_sampler(rule), rule, {**OPTIONS, "samples": 200})]
    assert run(cases, tmp_path / "new" / "x.json", {"mine": "1.0"}) == 0
    assert capsys.readouterr().out.startswith("mine: passed: 200 rounds")
    document = json.loads((tmp_path / "new" / "x.json").read_text(encoding="utf-8"))
    assert document["versions"] == {"mine": "1.0"}
    (entry,) = document["audits"]
    assert (entry["sampler"], entry["rejected"], entry["samples"]) == ("mine", False, 200)


def test_the_difference_of_two_sides_is_that_of_their_means():
    ours = {"a": {"kl": 2.0, "visited": 10}, "b": {"kl": 6.0, "visited": 20}}
    theirs = {"b": {"kl": 8.0, "visited": 20}, "a": {"kl": 4.0, "visited": 20}}
    here, there, apart, error = page.difference(theirs, ours, "kl")
    assert (here, there, apart) == pytest.approx((0.3, 8 / 30, 0.3 - 8 / 30))
    # Deviations from the means by prompt: ∓2 of 20 places there, ∓2/3 of 15 here.
    assert error == pytest.approx(2 / 20 - 2 / 3 / 15)
    assert page.difference(ours, ours, "kl")[2:] == (0, 0)


@pytest.mark.parametrize("name", ["vllm_forward", "vllm_engine", "ours", "transformers", "sglang"])
def test_the_page_carries_the_recorded_tables(name):
    text = (ROOT / "docs/audits.md").read_text(encoding="utf-8")
    assert f"<!-- {name} -->\n{page.tables(RESULTS)[name]}\n<!-- end of {name} -->" in text


def test_tables_take_their_place_in_a_document(tmp_path):
    file = tmp_path / "page.md"
    file.write_text("before\n<!-- ours -->\nold\n<!-- end of ours -->\nafter\n", encoding="utf-8")
    page.main(["--document", str(file)])
    text = file.read_text(encoding="utf-8")
    assert re.fullmatch(r"before\n<!-- ours -->\n\| sampler .*\n<!-- end of ours -->\nafter\n",
                        text, re.S)  # fmt: skip
    assert "old" not in text
    file.write_text("<!-- ours -->\nno end\n", encoding="utf-8")
    page.main(["--document", str(file)])
    assert file.read_text(encoding="utf-8") == "<!-- ours -->\nno end\n"


def test_seeds_of_the_sampler_repeat_an_audit():
    sampler = rejection_sampler(None)
    p = torch.tensor([[[0.5, 0.5]]]).expand(50, 1, 2)
    q = torch.tensor([[[0.2, 0.8], [0.5, 0.5]]]).expand(50, 2, 2)
    drafted = torch.zeros(50, 1, dtype=torch.int64)
    first, second = (
        sampler(p, q, drafted, torch.Generator().manual_seed(5))[1].tolist() for _ in range(2)
    )
    assert first == second
