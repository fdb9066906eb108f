"""Numbers of any size on the command lines of models: one line and status 2, never a traceback."""

import pytest

from real_models import decode, distill, record, search_layers

HUGE = "9" * 400
WHOLE = (HUGE, "-" + HUGE, "1e400", "nan")
REAL = ("nan", "-1e400")

CASES = [
    *(
        (main, option, value)
        for main, options in {
            decode: ("--seed", "--new-tokens", "--draft-tokens", "--batch-size", "--top-k"),
            record: ("--seed", "--positions", "--top-k"),
            distill: ("--seed", "--texts", "--length", "--batch", "--steps", "--layers"),
            search_layers: ("--seed", "--drop", "--positions", "--candidates"),
        }.items()
        for option in options
        for value in WHOLE
        if (option, value) != ("--top-k", HUGE)  # that many tokens are all of them
    ),
    *(
        (main, option, value)
        for main, options in {
            decode: ("--temperature", "--top-p"),
            record: ("--temperature", "--top-p"),
            distill: ("--minutes", "--learning-rate"),
        }.items()
        for option in options
        for value in REAL
    ),
    (record, "--temperature", "1e400"),
    (distill, "--learning-rate", HUGE),
]


@pytest.mark.parametrize(
    ("module", "option", "value"),
    CASES,
    ids=[f"{m.__name__}{option}={value:.8}" for m, option, value in CASES],
)
def test_a_number_that_cannot_be_used_is_one_line(
    module, option, value, tiny_folder, tiny_prompts, tmp_path, capsys
):
    needed = {
        decode: ("--prompts", str(tiny_prompts), "--draft", "skip:0"),
        record: ("--prompts", str(tiny_prompts), "--draft", "skip:0", "--out", str(tmp_path / "t")),
        distill: ("--prompts", str(tiny_prompts), "--layers", "1", "--out", str(tmp_path / "d")),
        search_layers: ("--prompts", str(tiny_prompts), "--drop", "1"),
    }[module]
    arguments = ["--verifier", str(tiny_folder), *needed, f"{option}={value}"]
    try:
        status = module.main(arguments)
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert (status, said.out) == (2, "")
    assert said.err.startswith(f"python -m {module.__name__}: error: ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("value", [HUGE, "-" + HUGE, "1e400", "-1e400", "nan"])
def test_a_parameter_of_any_size_is_refused_in_one_line(value, tiny_folder, capsys):
    arguments = ["--verifier", str(tiny_folder), "--draft", "skip:0", f"--k={value}"]
    assert decode.main([*arguments, "--rule", "top_k", "--prompt", "w4"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
