"""What grammars say, and that those that cannot work are refused with their place."""

from __future__ import annotations

import pytest

from dlfp_edge import Sampling, UsageError
from dlfp_edge.grammar import compile_grammar


def accepts(grammar: str, text: str) -> bool:
    matcher = compile_grammar(grammar).start.after(text.encode())
    return matcher is not None and matcher.may_end


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        ('root ::= "a" "b"?', ["a", "ab"], ["", "b", "abb"]),
        ('root ::= ("a" | "bc")*', ["", "abcbc"], ["b", "cb"]),
        ("root ::= [a-cx] [^a-cx]", ["ab"[::-1][0] + "z", "x\n"], ["aa", "dz"]),
        (r'root ::= "\"\\\n\x41\u00e9\U0001F600"', ['"\\\nAé😀'], ['"\\nAé😀']),
        ("root ::= [a\\]\\[-]+", ["a][-"], ["\\"]),
        ('root ::= x{2} y{1,} z{0,2}\nx ::= "x"\ny ::= "y"\nz ::= "z"', ["xxy", "xxyyzz"], ["xy", "xxzz", "xxyzzz"]),
        ('# a comment\nroot ::= (\n  "a" | # one\n  "b"\n) |\n "c"\n\n', ["a", "b", "c"], ["ab"]),
        ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["((x)", "()"]),
        ("root ::= .", ["é", "\n", "😀"], ["", "ab"]),
        ('root ::= ("a"?)* "b"', ["b", "aab"], ["a"]),
        ('root ::= empty "a" empty\nempty ::= ""', ["a"], [""]),
    ],
)
def test_what_a_grammar_says(grammar: str, yes: list[str], no: list[str]) -> None:
    assert [text for text in yes if not accepts(grammar, text)] == []
    assert [text for text in no if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ("", "no rule 'root'"),
        ('start ::= "a"', "no rule 'root'"),
        ('root = "a"', "line 1, column 6: expected ::="),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1: the rule 'root' is defined twice"),
        ("root ::= a", "line 1: the rule 'a' is not defined"),
        ('root ::= "a', "line 1, column 10: this quote has no end"),
        ("root ::= [a", r"line 1, column 10: this \[ has no \]"),
        ('root ::= ("a"', r"line 1, column 10: this \( has no \)"),
        ('root ::= "a")', "unexpected '\\)'"),
        ("root ::= []", "matches no character"),
        ("root ::= [z-a]", "ends before it begins"),
        (r'root ::= "\q"', r"unknown escape \\q"),
        (r'root ::= "\u12"', "4 hexadecimal digits"),
        (r'root ::= "\uD800"', r"U\+D800 is no character"),
        (r'root ::= "\U00110000"', "is no character"),
        ('root ::= "a"{1,1000000}', "column 13: 1000000 repetitions; the most is 5000"),
        (f'root ::= "a"{{{"9" * 5000}}}', "the most is 5000"),
        ('root ::= "a"{3,2}', "at least 3 and at most 2"),
        ('root ::= "a"{x}', "repetition is not"),
        ('root ::= "a"?????', "more than 4 repetitions"),
        (f"root ::= {'(' * 51}", "nest deeper than 50"),
        ("root ::= <think>", "token in a grammar"),
        ('root ::= root "a" | "b"', "left recursion"),
        ('root ::= e root\ne ::= "x"?', "left recursion"),
        ('root ::= "a" | b\nb ::= ("x"? | c)\nc ::= b "y"', "line 2: the rule 'b' begins with itself"),
        ('root ::= "a" root', "'root' can never end"),
        ('root ::= "a" b\nb ::= "(" b ")"', "'root' can never end"),
        ('root ::= x{5000}\nx ::= "a"{5000}', "longer than 4096 bytes"),
        ("root ::= " + "x " * 40_000 + '\nx ::= "a"', "more than 25000 parts"),
        ("#" * 100_001, "the most is 100000"),
        ("root ::= " + " | ".join(f'"{number}"' for number in range(1000)), "more than 256 ways"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(grammar: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        Sampling(grammar=grammar)
    assert "\n" not in str(refused.value)


def test_doubling_rules_do_not_double_the_work() -> None:
    levels = 70
    rules = [f'r{level} ::= r{level + 1} r{level + 1} | "{level % 10}"' for level in range(levels)]
    either = "\n".join(["root ::= r0", *rules, f'r{levels} ::= "z"'])
    assert compile_grammar(either).start.ending() == b"0"
    only = "\n".join(rule.partition(" |")[0] for rule in rules)
    with pytest.raises(UsageError, match="can never end"):
        compile_grammar(f'root ::= r0\n{only}\nr{levels} ::= "z"')


def test_a_grammar_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match="give the text"):
        Sampling(grammar=b"root")  # type: ignore[arg-type]
