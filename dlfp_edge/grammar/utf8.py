"""UTF-8 that ends in the middle of a character: tokens may."""

from __future__ import annotations

_FIRST, _LAST = 0x80, 0xBF
_SURROGATES = (0xD800, 0xDFFF)


def split(data: bytes) -> tuple[str, bytes] | None:
    """The whole characters of `data` and the beginning of one more; None where that is no UTF-8."""
    try:
        return data.decode(), b""
    except UnicodeDecodeError as error:
        rest = data[error.start :]
        if error.reason != "unexpected end of data" or begun(rest) is None:
            return None
        return data[: error.start].decode(), rest


def begun(rest: bytes) -> tuple[int, int] | None:
    """The first and last character that can begin with these one to three bytes; None where none can."""
    lead = rest[0]
    if 0xC2 <= lead <= 0xDF:
        size, least, high = 2, 0x80, lead & 0x1F
    elif 0xE0 <= lead <= 0xEF:
        size, least, high = 3, 0x800, lead & 0x0F
    elif 0xF0 <= lead <= 0xF4:
        size, least, high = 4, 0x10000, lead & 0x07
    else:
        return None
    low = high
    for index in range(1, size):
        if index < len(rest) and not _FIRST <= rest[index] <= _LAST:
            return None
        first, last = (rest[index],) * 2 if index < len(rest) else (_FIRST, _LAST)
        low, high = low << 6 | first & 0x3F, high << 6 | last & 0x3F
    low, high = max(low, least), min(high, 0x10FFFF)
    if low <= _SURROGATES[0] <= high <= _SURROGATES[1]:
        high = _SURROGATES[0] - 1
    elif _SURROGATES[0] <= low <= _SURROGATES[1]:
        return None
    return (low, high) if low <= high else None
