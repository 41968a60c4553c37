"""Single values of TensorFlow Serving's JSON dialect: parsing a body, base64 objects, and how errors name a
value.

The dialect has NaN and the infinities as bare tokens, strings that need not be UTF-8, and skips a byte order
mark. References: TensorFlow Serving, util/json_tensor.cc; RapidJSON with kParseNanAndInfFlag.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from typing import Any, NoReturn

import orjson

from serving.errors import InvalidInput

_SHOWN = 256
"""Characters of a value that an error quotes."""
_BARE_INF = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\bInf\b', re.DOTALL)
_NAME = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:', re.DOTALL)
_MAX_DEPTH = 512
"""Deeper nesting than any tensor's rank is refused before the recursive parser sees it."""


_MEMBERS = {
    name: f'"{name}"'.encode() for name in ("signature_name", "instances", "inputs", "examples", "context")
}


def parse(body: bytes) -> dict[str, Any]:
    """Return the object in a request body. Bytes that are not UTF-8 become surrogates; see `text_bytes`.

    Of members with the same name the first counts, as in RapidJSON.

    Raises:
        InvalidInput: empty, no JSON, something after the value, or no object.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = _parse_leniently(body)
    else:
        if type(document) is dict and _may_repeat(document, body):  # orjson keeps the last.
            document = _parse_leniently(body)
    if not isinstance(document, dict):
        raise InvalidInput(f"JSON Value: {json_text(document)} Is not object")
    return document


def _may_repeat(document: dict[str, Any], body: bytes) -> bool:
    """Whether a member that matters may stand in the body more than once."""
    for name in document:
        token = _MEMBERS.get(name)
        if token is not None and body.count(token) > 1:
            return True
    columns = document.get("inputs")
    if not isinstance(columns, dict):
        return False
    names = {orjson.dumps(name)[1:-1] for name in columns}
    found = [name for name in _NAME.findall(body) if name in names]
    return len(found) > len(names)


def _parse_leniently(body: bytes) -> Any:
    """Read what orjson refuses and the dialect allows: NaN, infinities, a BOM, bytes that are not UTF-8."""
    body = body.removeprefix(b"\xef\xbb\xbf")
    if not body.strip():
        raise InvalidInput("JSON Parse error: The document is empty")
    if body.count(b"[") + body.count(b"{") > _MAX_DEPTH and _too_deep(body):
        raise InvalidInput(f"JSON Parse error: values are nested more than {_MAX_DEPTH} deep")
    body = _BARE_INF.sub(_spell_out, body)
    try:
        return json.loads(
            body.decode("utf-8", "surrogateescape"), object_pairs_hook=_first_wins, parse_float=_parse_float
        )
    except json.JSONDecodeError as error:
        offset = len(error.doc[: error.pos].encode("utf-8", "surrogateescape"))
        raise InvalidInput(f"JSON Parse error: {error.msg} at offset: {offset}") from error
    except ValueError as error:
        raise InvalidInput(f"JSON Parse error: {error}") from error


def _spell_out(match: re.Match[bytes]) -> bytes:
    token = match.group()
    return token if token.startswith(b'"') else token.replace(b"Inf", b"Infinity")


def _too_deep(body: bytes) -> bool:
    depth = 0
    for token in re.finditer(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', body, re.DOTALL):
        if token.group() in b"[{":
            depth += 1
            if depth > _MAX_DEPTH:
                return True
        elif token.group() in b"]}":
            depth -= 1
    return False


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        found.setdefault(key, value)
    return found


def _parse_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("Number too big to be stored in double.")
    return value


def is_base64(value: Any) -> bool:
    """Return whether the value is `{"b64": "<string>"}` and nothing else: such an object is a string, not a
    structure."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def base64_bytes(value: Any) -> bytes:
    """Return the bytes of a base64 object; padding may be missing.

    Raises:
        InvalidInput: no base64 object, or not base64.
    """
    if not is_base64(value):
        raise InvalidInput(f"JSON Value: {json_text(value)} not formatted correctly for base64 data")
    text = value["b64"].rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput("Unable to base64 decode") from error


def text_bytes(value: str) -> bytes:
    """Return the bytes of a JSON string as the client sent them.

    Raises:
        InvalidInput: it has half of a surrogate pair, escaped; no bytes stand for that.
    """
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidInput("JSON Parse error: The surrogate pair in string is invalid.") from error


def type_name(value: Any) -> str:
    """Return RapidJSON's name of the value's type, which errors use."""
    if value is None or isinstance(value, bool):
        return {None: "Null", True: "True", False: "False"}[value]
    kinds: tuple[tuple[Any, str], ...] = ((dict, "Object"), (list, "Array"), (str, "String"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "Number")


def json_text(value: Any) -> str:
    """Return the value as an error quotes it, cut to a readable length."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return f"({type_name(value)}, nested too deep to show)"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def refuse_type(value: Any, dtype_name: str) -> NoReturn:
    """Refuse a value that is not of the tensor's type."""
    raise InvalidInput(
        f"JSON Value: {json_text(value)} Type: {type_name(value)} is not of expected type: {dtype_name}"
    )
