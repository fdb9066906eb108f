"""Prompt files: the ten of the package, and every way a line can be wrong."""

import hashlib
from collections import Counter

import pytest

from real_models.errors import UserError
from real_models.prompts import DEFAULT_PROMPTS, Prompt, encode_prompt, read_prompts, told_form


def test_the_prompts_of_the_package():
    prompts, digest = read_prompts()
    assert len(prompts) == 10
    assert set(Counter(p.domain for p in prompts)) == {
        "mathematics", "instructions", "prose", "code"
    }  # fmt: skip
    assert all(p.chat == (p.domain in ("mathematics", "instructions")) for p in prompts)
    assert digest == hashlib.sha256(DEFAULT_PROMPTS.read_bytes()).hexdigest()


def test_defaults_and_blank_lines(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n\n  \n{"prompt": "two", "chat": true, "domain": "d"}')
    assert read_prompts(path)[0] == [
        Prompt("one", "prompt-00000", "all", None),
        Prompt("two", "prompt-00001", "d", True),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", 'not an object with a "prompt"'),
        ('{"id": "x"}', 'not an object with a "prompt"'),
        ('{"prompt": ""}', "'prompt' must be a non-empty string"),
        ('{"prompt": 3}', "'prompt' must be a non-empty string, got 3"),
        ('{"prompt": "x", "id": null}', "'id' must be a non-empty string"),
        ('{"prompt": "x", "chat": 1}', "'chat' must be true or false"),
        ('{"prompt": "x", "Chat": true}', "unknown field 'Chat'"),
        ('{"prompt": "x", "id": "same"}', "the id 'same' is used twice"),
        (r'{"prompt": "\ud83d bad"}', "half of a surrogate pair"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, reason):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine", "id": "same"}\n' + line + "\n")
    with pytest.raises(UserError) as caught:
        read_prompts(path)
    assert f"{path} line 2: " in str(caught.value)
    assert reason in str(caught.value)


def test_unusable_files(tmp_path):
    with pytest.raises(UserError, match=r"absent\.jsonl cannot be read"):
        read_prompts(tmp_path / "absent.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match="holds no prompt"):
        read_prompts(tmp_path / "empty.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "caf\xe9"}')
    with pytest.raises(UserError, match="is not UTF-8: byte 15"):
        read_prompts(tmp_path / "latin.jsonl")


def test_chat_prompts_go_through_the_template(make_tokenizer):
    tokenizer = make_tokenizer()
    assert encode_prompt(Prompt("w4 w5", "a"), tokenizer) == [4, 5]
    assert encode_prompt(Prompt("w4 w5", "a", chat=True), tokenizer) == [2, 4, 5, 3]
    with pytest.raises(UserError, match="prompt 'a' has no tokens"):
        encode_prompt(Prompt(" ", "a"), tokenizer)
    with pytest.raises(UserError, match="prompt 'a' is a chat, but"):
        encode_prompt(Prompt("w4", "a", chat=True), make_tokenizer(template=None))


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = tmp_path / "lines.jsonl"
    text = "a\u2028b\u0085c\u2029d\x0be"
    path.write_text(
        '{"prompt": "a\u2028b\u0085c\u2029d\\u000be"}\r\n{"prompt": "x"}\r\n', newline=""
    )
    assert [prompt.prompt for prompt in read_prompts(path)[0]] == [text, "x"]


def test_plain_text_is_a_prompt_a_line(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_bytes('Rivers shape\u2028the land.\r\n\n  \n{"prompt": 1}\n'.encode())
    assert read_prompts(path)[0] == [
        Prompt("Rivers shape\u2028the land.", "prompt-00000", "all", None),
        Prompt('{"prompt": 1}', "prompt-00001", "all", None),
    ]


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"prompt": ' + "[" * 100_000, '{"prompt": ' + "9" * 5000 + "}"]
)
def test_hostile_json_is_one_short_line(tmp_path, line):
    path = tmp_path / "deep.jsonl"
    path.write_text(line)
    with pytest.raises(UserError, match="line 1: ") as caught:
        read_prompts(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 250


def test_a_prompt_that_says_nothing_goes_through_the_template_there_is(make_tokenizer):
    asked, bare = make_tokenizer(), make_tokenizer(template=None)
    prompt = Prompt("w4 w5", "a", chat=None)
    assert encode_prompt(prompt, asked) == [2, 4, 5, 3]
    assert encode_prompt(prompt, bare) == [4, 5]
    assert told_form([prompt], asked, "m") == "prompts go through the chat template of m"
    assert told_form([prompt], bare, "m") == "prompts as raw text"
    mixed = told_form([prompt, Prompt("w4", "b")], asked, "m")
    assert mixed == "1 of 2 prompts go through the chat template of m, the others as raw text"


def test_every_prompt_of_the_package_says_how_it_is_put():
    for path in DEFAULT_PROMPTS.parent.glob("*.jsonl"):
        assert all(isinstance(prompt.chat, bool) for prompt in read_prompts(path)[0])
