"""What JSON is made of, as grammar text."""

from __future__ import annotations

_HEX = "[0-9a-fA-F]"
COMMON = {
    "space": '" "?',
    "plain": r'[^"\\\x00-\x1f\x7f]',
    "escape": rf'"\\" (["\\/bfnrt] | "u" ([0-9a-cefA-CEF] {_HEX}{{3}} | [dD] [0-7] {_HEX}{{2}}))',
    "char": "plain | escape",
    "string": r'"\"" char* "\""',
    "integer": '"-"? ("0" | [1-9] [0-9]{0,14})',
    "number": 'integer ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "value": "object | array | string | number | boolean | null",
    "member": 'string ":" space value',
    "object": '"{" (member ("," space member)*)? "}"',
    "array": '"[" (value ("," space value)*)? "]"',
    "year": '("19" | "20") [0-9] [0-9]',
}
_DIGIT_59 = "[0-5] [0-9]"
_DATE = (
    'year "-" (("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01]) '
    '| ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30") | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8]))'
)
_TIME = f'([01] [0-9] | "2" [0-3]) ":" {_DIGIT_59} ":" {_DIGIT_59} ("." [0-9]{{1,6}})? "Z"'
_OCTET = '("25" [0-5] | "2" [0-4] [0-9] | "1" [0-9] [0-9] | [1-9]? [0-9])'
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": "[0-9a-f]{8} " + '"-" [0-9a-f]{4} ' * 3 + '"-" [0-9a-f]{12}',
    "ipv4": ' "." '.join([_OCTET] * 4),
}
