"""Small random grammars that need no luck to be valid: no left recursion, every rule can end."""

from __future__ import annotations

from hypothesis import strategies as st

ALPHABET = 'abé€😀"'
_LEAVES = ['"a"', '"ab"', '"é"', "[ab]", "[^a]", "[é-€]", '"\\""', '""', '"😀"', "."]
_RULES = ("x", "y", "root")


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(" ".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({' | '.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "{0,2}"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    )


_expressions = st.recursive(st.sampled_from(_LEAVES), _grown, max_leaves=8)
_recursive = st.sampled_from(_RULES).map(lambda name: f'"b" {name}? ')


@st.composite
def grammars(draw: st.DrawFn) -> str:
    """GBNF text. A rule may name another one, or itself, after a letter and if it likes."""
    lines = []
    for name in _RULES:
        body = draw(_expressions)
        if draw(st.booleans()):
            body = f"{body} | {draw(_recursive)}"
        if draw(st.booleans()):
            body = f"{body} | {draw(_recursive)} {draw(_expressions)}"
        lines.append(f"{name} ::= {body}")
    return "\n".join(lines)
