"""Grammars of users: embedded schemas and refused features."""

from __future__ import annotations

from typing import Any

import pytest

from banyan.runtime.constraint import lark
from banyan.runtime.errors import ConstraintError, ConstraintSyntax, ConstraintTooLarge, ConstraintUnsupported

SUM = """
?start: sum   // an expression
sum: product | sum "+" product -> add  # or two
product: atom | product "*" atom
atom: NUMBER | "-" atom | "(" sum ")" | /<[a-z]+>/
%import common.NUMBER
%ignore /[ ]/
"""


def test_grammar_without_schemas_is_unchanged() -> None:
    assert lark.join(lark.split(SUM)) == SUM


def test_embedded_schemas_are_found() -> None:
    text = 'start: "%json {" x %json{"const": "}{ %json"} "<"\nx: %json {"type": "integer"}|"a"'
    schemas = [{"const": "}{ %json"}, {"type": "integer"}]
    assert [part for part in lark.split(text) if isinstance(part, dict)] == schemas
    rejoined = lark.join(lark.split(text))
    assert [part for part in lark.split(rejoined) if isinstance(part, dict)] == schemas
    assert lark.split("start: /[\n]/ %json {} /b/") == ["start: /[\n]/ %json", {}, " /b/"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('start: <|im_end|> "a"', "special tokens"),
        ('start: <[5]> "a"', "special tokens"),
        ("start: <tool>", "special tokens"),
        ("start: x\nx[max_tokens=3]: /.*/", r"\[max_tokens\]"),
        ("start: x\nx[lazy]: /.*/", r"\[lazy\]"),
        ("start: x\nx[capture, temperature=0.1].2: /.*/", r"\[capture\]"),
        ('%llguidance {"no_forcing": true}\nstart: "a"', "%llguidance"),
        ('start: %regex { "substring_words": "a b" }', "%regex"),
        ("start: %lark {\nstart: <[3]>\n}", "special tokens"),
        ("%import other.NAME\nstart: NAME", "%import other"),
        ("%import other (NAME)\nstart: NAME", "%import other"),
        ("%import commons (NAME)\nstart: NAME", "%import commons"),
        ("start: @other", "'@other'"),
        ("start: /[\n]/ <[1]> /b/", "special tokens"),
    ],
)
def test_unsupported_feature_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ConstraintUnsupported, match=message):
        lark.split(text)


def test_grammar_in_bnf_is_refused_with_the_notations_that_are_taken() -> None:
    with pytest.raises(ConstraintSyntax, match=r"write rules as name ::= \.\.\. \(GBNF, without angle brackets"):
        lark.split(lark.from_gbnf("<start> ::= <digit>+"))


JSON_IN_GBNF = r"""
root   ::= object   # the grammar of JSON that llama.cpp has, shortened
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("text", "allowed", "forbidden"),
    [
        (JSON_IN_GBNF, ['{"a":1}', '{"a": [1, 2.5e3, "\\u00e9"]}', "{}"], ['{"a":}', "[1]", "{"]),
        ('root ::= [a-z]+ "x"', ["abx", "xx"], ["x", "ab"]),
        ('root ::= city | city " is " status\ncity ::= "Rome" | "Oslo"\nstatus ::= .+', ["Rome", "Oslo is x"], ["Ro"]),
        ('root ::= item{2,3}\nitem ::= "- " [^\\n]+ "\\n"', ["- a\n- b c\n"], ["- a\n", "- \n- a\n"]),
        (
            r'root ::= "\u0041BC\\u0041" [\u00e9\u005d] [\U0001F600-\U0001F64F] "\u0022"',
            ['ABC\\u0041é😀"', 'ABC\\u0041]🙏"'],
            ['\u041bC\\u0041é😀"', 'ABC\\u0041e😀"'],
        ),
        (
            'root ::= "a\\"\\n|" [\\]"]  # "\n\n  | [|\n]\r\n\t| b\n# | "x"\nb ::=\n"c"',
            ['a"\n|]', 'a"\n|"', "|", "\n", "c"],
            ["a", "x", '"', " "],
        ),
        ('long-name ::= "b"\nroot ::= "a" long-name', ["ab"], ["a"]),
    ],
)
def test_grammar_in_gbnf_is_translated(bench: Any, text: str, allowed: list[str], forbidden: list[str]) -> None:
    guide = bench.guide("grammar", text)
    assert [one for one in (*allowed, *forbidden) if bench.accepts(guide, one)] == allowed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root ::= select", "in GBNF: Rule 'select' not found"),
        ('x ::= "a"', "in GBNF: No 'root' rule found"),
        ('start: "a"\nx ::= [0-9]+', "in GBNF: Expected ::= at line 1"),
        ("root ::= <|im_end|>", "in GBNF: Expected name"),
        (r'root ::= "\UFFFFFFFF"', r"in GBNF: \\UFFFFFFFF is no character"),
        (r'root ::= "\ud83d\ude00"', r"in GBNF: \\ud83d is no character; write .* \\UXXXXXXXX"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "in GBNF: it is nested too deeply"),
    ],
)
def test_invalid_gbnf_raises(text: str, message: str) -> None:
    with pytest.raises(ConstraintSyntax, match=message):
        lark.from_gbnf(text)


def test_memory_that_is_out_is_no_invalid_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    def translate(text: str) -> str:
        raise MemoryError

    monkeypatch.setattr(lark, "gbnf_to_lark", translate)
    with pytest.raises(MemoryError):
        lark.from_gbnf('root ::= "a"')


@pytest.mark.parametrize("unit", ["\\/\n", "\\/", '\\"', '\\"\\\n'])
def test_literals_without_an_end_are_read_once(unit: str) -> None:
    text = 'start: "a"\n' + unit * (65536 // len(unit))
    assert lark.split(text) == [text]


def test_assignment_sign_in_a_string_is_no_ebnf() -> None:
    text = 'start: "::=" /::=/  // ::='
    assert lark.split(lark.from_gbnf(text)) == [text]


@pytest.mark.parametrize(
    "text", ["start: %json {", "start: %json [1]", "start: %json", "start: %json " + '{"a":' * 9999]
)
def test_invalid_embedded_json_raises(text: str) -> None:
    with pytest.raises(ConstraintSyntax, match=r"%json must be|%json is not valid JSON"):
        lark.split(text)


@pytest.mark.parametrize("frame", ['{{"maximum": {}}}', 'start: %json {{"maximum": {}}}'])
def test_number_that_no_compiler_reads_is_named(bench: Any, frame: str) -> None:
    kind = "grammar" if "%json" in frame else "json_schema"
    for number in ("1e999", "-1e999", "1" + "0" * 400, "9" * 5000):
        with pytest.raises(ConstraintTooLarge, match=f"contains {number[:40]}, which is too large for a number"):
            bench.compile(kind, frame.format(number))
    for name in ("Infinity", "-Infinity", "NaN"):
        with pytest.raises(ConstraintSyntax, match=f"is not valid JSON: it contains {name}"):
            bench.compile(kind, frame.format(name))


@pytest.mark.parametrize(
    "text", ["", "start: x", 'start: "a', "start: /a", "begin: 'a'", "start: 'a' ]", "\0", "start: ("]
)
def test_invalid_grammar_raises(bench: Any, text: str) -> None:
    with pytest.raises(ConstraintError):
        bench.compile("grammar", text)


@pytest.mark.parametrize("begin", ['"', "/", "\\/", '"\\\n', "/\\\n", "/\n", "/*", '"a" i"'])
@pytest.mark.parametrize("what", ["<[1]>", '%json {"contains": {}}', "@other"])
def test_no_feature_is_hidden_in_a_literal_without_an_end(bench: Any, begin: str, what: str) -> None:
    with pytest.raises(ConstraintError):
        bench.compile("grammar", f'start: "a" {begin} {what}')


def test_grammar_constrains_the_output(bench: Any) -> None:
    guide = bench.guide("grammar", SUM)
    for text in ("1+2*3", "(-1 + 2) * <there>"):
        assert bench.accepts(guide, text.encode()), text
    assert not bench.accepts(guide, b"1+")
    guide = bench.guide("grammar", 'start: "[" item ("," item)* "]"\nitem: %json {"type": "array", "maxItems": 2}')
    assert bench.accepts(guide, b"[[1, 2],[]]")
    assert not bench.accepts(guide, b"[[1 ,2]]")
    assert bench.accepts(bench.guide("grammar", "start: %json {}", style="compact"), b"[1,2]")


def test_several_terminals_are_imported_at_once(bench: Any) -> None:
    guide = bench.guide("grammar", "start: INT WORD\n%import common (INT, WORD)")
    assert bench.accepts(guide, b"12ab")
    assert not bench.accepts(guide, b"12")


def test_embedded_schema_follows_the_rules_of_schemas(bench: Any) -> None:
    with pytest.raises(ConstraintUnsupported, match="contains"):
        bench.compile("grammar", 'start: %json {"contains": {"type": "integer"}}')
    guide = bench.guide(
        "grammar", 'start: %json {"x-guidance": {"lenient": true, "key_separator": "="}, "const": {"a": 1}}'
    )
    assert bench.accepts(guide, b'{"a": 1}')
