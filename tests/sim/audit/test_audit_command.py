"""`python -m sim.audit`: what it prints and writes, its exit status, and mistakes of one line."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sim import audit
from sim.audit.command import main
from sim.audit.picture import audit_picture
from theory import make_rule

SAMPLER = '''
import numpy as np

def verify(p, q, drafted, generator):
    """Exact match with a draw from q: strict, and right for every draft."""
    def draw(rows):
        return (rows.cumsum(-1) <= generator.random((*rows.shape[:-1], 1))).sum(-1)
    count, places = drafted.shape
    drawn = draw(q)
    accepted = (drawn[:, :-1] == drafted).cumprod(-1).sum(-1)
    place = np.arange(places + 1)
    tokens = np.where(place <= accepted[:, None], drawn, -1)
    return accepted, tokens

def broken(p, q, drafted, generator):
    raise RuntimeError("out of order")
'''


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    (tmp_path / "mine.py").write_text(SAMPLER, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def ended(line, *more):
        words = [*shlex.split(line), *more]
        try:
            status = main(["--samples", "500", *words])
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return ended


def test_a_file_passes_as_the_rule_that_it_is(run):
    status, told, errors = run("--sampler mine.py:verify --rule target_only --out here")
    assert (status, errors) == (0, "")
    assert "passed: 500 rounds hold nothing against the claim at 0.01" in told


def test_a_rejected_claim_is_status_1_and_says_what_to_paste(run, tmp_path):
    status, told, _ = run("--sampler mine.py:verify --rule sps --out here")
    assert status == 1
    assert "REJECTED after" in told
    assert "acceptance: too low" in told
    command = next(line for line in told.splitlines() if "python -m sim.audit --sampler" in line)
    alarm = json.loads((tmp_path / "here/audit.json").read_text(encoding="utf-8"))["alarm_at"]
    assert command.split("sim.audit ")[1] == (
        f"--sampler mine.py:verify --rule sps --samples {alarm}"
    )
    again = run(command.split("sim.audit ")[1] + " --out again")
    assert again[0] == 1
    assert f"REJECTED after {alarm:,} rounds" in again[1]


def test_the_json_is_one_document_and_is_what_is_written(run, tmp_path):
    status, told, errors = run("--sampler fault:swapped --rule sps --out here --json")
    document = json.loads(told)
    assert (status, errors) == (1, "")
    assert document["rejected"]
    assert document["impossible"]
    assert document["log_e"] is None
    assert {finding["kind"] for finding in document["findings"]} >= {"impossible acceptance"}
    written = json.loads((tmp_path / "here/audit.json").read_text(encoding="utf-8"))
    assert written == {key: value for key, value in document.items() if key != "files"}
    cells = pd.read_parquet(tmp_path / "here/cells.parquet")
    assert set(cells["part"]) == {"accepted drafts", "acceptance", "recovery", "bonus"}
    assert (tmp_path / "here/audit.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "here/manifest.json").read_text(encoding="utf-8"))


def test_a_budget_is_audited_without_a_rule(run):
    status, told, _ = run("--sampler mine.py:verify --budget kl=0.05 --out here")
    assert status == 0
    assert "claim: KL(output‖q) ≤ 0.05 nats at every place" in told
    assert "nats at one place (median)" in told


def test_a_sampler_that_raises_is_told_and_leaves_no_picture(run, tmp_path):
    status, told, errors = run("--sampler mine.py:broken --rule sps --out here")
    assert (status, errors) == (1, "")
    assert "raised: RuntimeError: out of order (block 'ordinary', sample 0, row 0; 1 of 64" in told
    assert sorted(path.name for path in (tmp_path / "here").glob("[!.]*")) == [
        "audit.json",
        "manifest.json",
    ]


def test_parameters_and_rows_of_ones_own(run, tmp_path):
    pairs = audit.hostile_pairs(vocab=9, drafts=2)
    np.savez(tmp_path / "rows.npz", p=pairs.p, q=pairs.q)
    status, told, _ = run(
        "--sampler reference --rule typical --parameters epsilon=0.2 recover_by=verifier "
        "--pairs rows.npz --out here"
    )
    assert status == 0
    assert "claim: Typical(epsilon=0.2, alpha=0.3, recover_by='verifier')" in told
    assert "rows: 15 blocks of 2 drafts, 9 tokens: audit.read_pairs('rows.npz')" in told
    status, told, _ = run("--sampler reference --rule top_k --value 3 --verification block")
    assert status == 0
    assert "claim: TopK(k=3, recover_by='verifier'), verified by block" in told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--sampler mine.py:verify", "one of --rule and --budget is needed"),
        ("--sampler mine.py:verify --rule sps --budget kl=1", "one of --rule and --budget"),
        ("--sampler mine.py:nothing --rule sps", "there is no function 'nothing'"),
        ("--sampler mine.py --rule sps", "expected MODULE_OR_FILE:FUNCTION"),
        ("--sampler other.py:verify --rule sps", "--sampler other.py: No such file"),
        ("--sampler fault:swaped --rule sps", "did you mean 'swapped'?"),
        ("--sampler reference --budget kl=0.1", "--sampler reference needs --rule"),
        ("--sampler reference --rule spd", "unknown rule 'spd'; did you mean 'sps'?"),
        ("--sampler reference --rule sps --value 1", "the rule 'sps' has no parameter"),
        ("--sampler reference --rule cactus --value -1", "delta must lie in [0, inf], got -1.0"),
        ("--sampler reference --rule cactus --parameters x", "expected NAME=VALUE, got 'x'"),
        ("--sampler mine.py:verify --budget js=0.1", "unknown divergence of --budget 'js'"),
        ("--sampler mine.py:verify --budget kl=much", "expected a number of nats, got 'much'"),
        ("--sampler reference --rule sps --samples 0", "--samples must be an integer of at"),
        ("--sampler reference --rule sps --level 2", "--level must lie in (0, 0.5], got 2.0"),
        ("--sampler reference --rule sps --pairs no.npz", "No such file or directory: 'no.npz'"),
        ("--sampler reference --rule sps --pairs mine.py", "mine.py: "),
        ("--sampler reference --rule sps --vocab 3", "vocab must be an integer of at least 8"),
        ("--sampler reference --rule sps --vocab 100000000", "must be at most"),
        ("--sampler reference --rule sps --pairs mine.py", "mine.py: it is no .npz file"),
        ("--sampler reference --rule cactus --parameters delta=.1 delta=.2", "was given twice"),
        ("--sampler reference --rule cactus --value .1 --parameters delta=.2", "delta is given by"),
        ("--sampler reference --rule sps --device cuda", "device 'cuda' needs torch"),
        ("--sampler reference --rule sps --dtype half", "invalid choice: 'half'"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(run, line, told):
    status, printed, errors = run(line)
    assert (status, printed) == (2, "")
    assert told in errors
    assert errors.startswith("python -m sim.audit: error: ")
    assert errors.count("\n") == 1


def test_bad_arguments_leave_no_folder(run, tmp_path):
    assert run("--sampler reference --rule sps --pairs no.npz --out here")[0] == 2
    assert not (tmp_path / "here").exists()


# --- the picture ---------------------------------------------------------------------------------


def test_the_picture_is_titled_with_what_was_found():
    rule = make_rule("sps")
    fault = audit.faulty_samplers()["recovery_from_q"]
    for sampler, told in (
        (fault.sampler, "the recovery is drawn from the verifier's row q"),
        (audit.reference_sampler(rule), "500 rounds hold nothing against it"),
    ):
        figure = audit_picture(audit.audit(sampler, rule, samples=500))
        assert told in figure.get_suptitle().replace("\n", " ")
        assert len(figure.axes) == 2
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_the_picture_of_a_budget_shows_places():
    sampler = audit.reference_sampler(make_rule("lenience", l=0.3))
    report = audit.audit_budget(sampler, "kl", 0.05, samples=2_000)
    figure = audit_picture(report)
    assert report.rejected
    assert "nats over" in figure.get_suptitle().replace("\n", " ")
    assert "place" in figure.axes[1].get_yticklabels()[0].get_text()


def test_there_is_no_picture_of_no_answer():
    report = audit.audit(lambda *given: None, make_rule("sps"), samples=100)
    with pytest.raises(ValueError, match="the sampler never answered"):
        audit_picture(report)


# --- the page ------------------------------------------------------------------------------------

PAGE = (Path(__file__).resolve().parents[3] / "docs/audits.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_is_rejected_for_what_the_page_says(run, tmp_path):
    code = re.search(r"```python\n(.*?)```", PAGE, re.S)[1]
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    status, told, _ = run("--sampler mine.py:verify --rule sps --out here")
    shown = re.search(r"```text\n(.*?)```", PAGE, re.S)[1]
    assert status == 1
    again = "python -m sim.audit --sampler mine.py:verify --rule sps --samples 64"
    for line in ("REJECTED after 64 rounds", "it looks as if the recovery is drawn from", again):
        assert line in told
        assert line in shown


def test_the_page_has_a_row_for_every_stand_in():
    rows = re.findall(r"^\| `(\w+)`: ", PAGE, re.M)
    assert rows == list(audit.faulty_samplers())


def test_what_a_sampler_prints_is_not_in_the_document(run, capsys, tmp_path):
    noisy = (
        SAMPLER
        + """
def noisy(*given):
    print("asked")
    return verify(*given)

print("loaded")
"""
    )
    (tmp_path / "noisy.py").write_text(noisy, encoding="utf-8")
    asked = ["--sampler", "noisy.py:noisy", "--rule", "target_only", "--samples", "100", "--json"]
    assert main([*asked, "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["rejected"] is False
    assert "asked" in told.err
