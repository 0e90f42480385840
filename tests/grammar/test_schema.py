"""Schemas: every text of the grammar validates, and what is not enforced is refused with its place."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge import UsageError
from dlfp_edge.bench.schema_set import COUNT, schema_set
from dlfp_edge.grammar import compile_grammar, schema_grammar
from dlfp_edge.grammar.numbers import LARGEST, integers

VALIDATOR = jsonschema.Draft202012Validator


def random_text(grammar: str, random: Random) -> str:
    """A text of the grammar: some random characters that it allows, then the shortest end."""
    matcher = compile_grammar(grammar).start
    text = b""
    for _ in range(random.randrange(150)):
        if matcher.must_end or (matcher.may_end and random.random() < 0.1):
            break
        first, last = random.choice(matcher.allowed)
        character = chr(random.randint(first, min(last, first + 90))).encode()
        longer = matcher.after(character)
        assert longer is not None
        matcher, text = longer, text + character
    return (text + matcher.ending()).decode()


def test_every_text_validates() -> None:
    random = Random(5)
    assert len(schema_set()) == COUNT
    for schema in schema_set():
        VALIDATOR.check_schema(schema)
        grammar = schema_grammar(schema)
        validator = VALIDATOR(schema, format_checker=VALIDATOR.FORMAT_CHECKER)
        for text in [random_text(grammar, random) for _ in range(12)]:
            validator.validate(json.loads(text))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, '{"a": [1, -2.5e10, null], "b": {"c": "\\u00e9\\n"}}'),
        ({"type": "object"}, "{}"),
        ({"properties": {"a": {}, "b": {}}}, '{"b":1}'),
        ({"properties": {"a": {}}, "additionalProperties": True}, '{"a":1,"ab":2,"b":[]}'),
        ({"type": "array", "prefixItems": [{"type": "integer"}]}, '[1, "x", {}]'),
        ({"type": "number", "minimum": -2, "maximum": 3}, "-1.25"),
        ({"enum": [1, 10, "1"]}, "10"),
        ({"type": "string", "maxLength": 3}, '"\\n\\u00e9é"'),
        ('{"type": ["null", "boolean"]}', "true"),
    ],
)
def test_what_a_schema_allows_can_be_said(schema: Any, text: str) -> None:
    matcher = compile_grammar(schema_grammar(schema)).start.after(text.encode())
    assert matcher is not None
    assert matcher.may_end


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "maxLength": 3}, '"abcd"'),
        ({"type": "string"}, '"\\ud800"'),
        ({"properties": {"ab": {}}, "additionalProperties": {"type": "null"}}, '{"b":null,"ab"'),
        ({"properties": {"a": {}}}, '{"b"'),
        ({"properties": {"a": {}, "b": {}}, "required": ["a"]}, '{"b"'),
        ({"type": "array", "minItems": 2}, "[1]"),
        ({"type": "integer"}, "01"),
    ],
)
def test_what_it_forbids_cannot(schema: Any, text: str) -> None:
    assert compile_grammar(schema_grammar(schema)).start.after(text.encode()) is None


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"properties": {"a": {"pattern": "x"}}}, "'pattern' at #/properties/a cannot be enforced"),
        ({"items": {"multipleOf": 3}}, "'multipleOf' at #/items"),
        ({"uniqueItems": True}, "'uniqueItems' at #"),
        ({"not": {}}, "'not' at #"),
        ({"if": {}, "then": {}}, "'if' at #"),
        ({"contains": {}}, "'contains'"),
        ({"patternProperties": {}}, "'patternProperties'"),
        ({"propertyNames": {}}, "'propertyNames'"),
        ({"dependentRequired": {}}, "'dependentRequired'"),
        ({"unevaluatedProperties": False}, "'unevaluatedProperties'"),
        ({"format": "email"}, "'format' at # 'email'"),
        ({"format": "date", "minLength": 3}, "'minLength' at # beside 'format'"),
        ({"minLenght": 3}, "'minLenght' at #"),
        ({"type": "string", "nullable": True}, "'nullable' at # is not JSON Schema"),
        ({"$ref": "https://example.org/s"}, "only places in the schema itself"),
        ({"$ref": "#/$defs/none"}, "names #/\\$defs/none, which is not there"),
        ({"$ref": "#"}, "leads back to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "leads back to itself"),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "left recursion"),
        ({"$ref": "#/$defs/a", "minLength": 1, "$defs": {"a": {}}}, "'minLength' at # beside '\\$ref'"),
        ({"anyOf": [{}], "type": "string"}, "'type' at # beside 'anyOf'"),
        ({"anyOf": []}, "give a list of schemas"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'oneOf' at #"),
        ({"oneOf": [{"type": "object"}, {"type": "object"}]}, "'oneOf' at #"),
        ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "'oneOf' at #"),
        ({"allOf": [{}, {}]}, "'allOf' at #"),
        ({"enum": [], "title": "x"}, "no value is left"),
        ({"const": 1, "type": "string"}, "no value is left"),
        ({"enum": ["a"], "minLength": 3}, "'minLength' at # beside 'enum'"),
        ({"type": "strin"}, "did you mean 'string'"),
        ({"type": [["string"]]}, "'type' at #"),
        ({"type": []}, "'type' at # is empty"),
        ({"minLength": 3, "maxLength": 2}, "nothing fits"),
        ({"minItems": -1}, "give a whole number from 0"),
        ({"minLength": 1.5}, "give a whole number from 0"),
        ({"minimum": "3"}, "'minimum' at # is '3'"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no whole number fits"),
        ({"type": "number", "minimum": 0.5, "maximum": 0.7}, "no whole number fits"),
        ({"minProperties": 1}, "'minProperties'"),
        ({"properties": {"a": {}, "b": {}}, "maxProperties": 1}, "'maxProperties'"),
        ({"required": ["a"], "additionalProperties": False}, "'required' at # names 'a'"),
        ({"items": [{}]}, "name it 'prefixItems'"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "can never end"),
        ({"properties": {"a": False}}, "allows nothing at #/properties/a"),
        ({"properties": {str(number): {} for number in range(201)}}, "the most that can be enforced is 200"),
        ({"default": float("nan")}, "holds what JSON cannot at #/default"),
        ({1: 2}, "key that is no text"),
        ({"default": {"x" * 300_000: 1}}, "larger than"),
        ({"properties": {"a" * 5000: {}}, "additionalProperties": True}, "names of more than 4000 characters"),
        ({"minLength": 10**5000}, "a number of more than 1000 bits at #/minLength"),
        ({"oneOf": [{"const": number} for number in range(101)]}, "'oneOf' at # of more than 100"),
        ({"$ref": "#/$defs/0", "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(99)}}, "more than 20"),
        ("{", "is not JSON"),
        ("[" * 100_000, "json_schema"),
        ("3", "give an object"),
        (None, "give an object"),
    ],
)
def test_what_cannot_be_enforced_is_refused_in_one_line(schema: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        schema_grammar(schema)
    assert "\n" not in str(refused.value)


def test_a_schema_that_holds_itself_is_refused() -> None:
    schema: dict[str, Any] = {}
    schema["items"] = schema
    with pytest.raises(UsageError, match="nested deeper"):
        schema_grammar(schema)


@given(st.integers(-(10**6), 10**6), st.integers(0, 3000), st.data())
def test_integer_ranges_are_exact(least: int, span: int, data: st.DataObject) -> None:
    grammar = compile_grammar(f"root ::= {integers(least, least + span)}")
    value = data.draw(st.one_of(st.integers(least - 50, least + span + 50), st.integers(-LARGEST, LARGEST)))
    matcher = grammar.start.after(str(value).encode())
    assert (matcher is not None and matcher.may_end) == (least <= value <= least + span)
