"""Numbers that C reads are those that Python reads, in any shape; nothing else is taken for numbers."""

from __future__ import annotations

import json
import shutil
import struct
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serving import json_numbers

NUMBER = st.from_regex(r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
DOUBLE = st.floats(allow_nan=False, allow_infinity=False)


def read(text: str) -> tuple[tuple[int, ...], np.ndarray] | None:
    """Read a tensor from a body whose end is far behind it, and from one that ends with it."""
    short = json_numbers.read(b'{"inputs":%b}' % text.encode())
    long = json_numbers.read(b'{"inputs":%b%b}' % (text.encode(), b" " * 40_000))
    if short is None or long is None:
        assert short is long
        return None
    (name, row_format, [tensor], numbers), (_, _, [same], others) = short, long
    assert (name, row_format, tensor) == ("", False, same)
    _, shape, whole, first, count = tensor
    assert first == 0
    arrays = [np.frombuffer(found, np.int64 if whole else np.float64)[:count] for found in (numbers, others)]
    np.testing.assert_array_equal(*arrays)
    return shape, arrays[0]


def bits(value: float) -> bytes:
    return struct.pack("d", value)


def test_it_is_compiled_where_there_is_a_compiler() -> None:
    assert json_numbers.COMPILED or shutil.which("cc") is None


@settings(max_examples=2000, deadline=None)
@given(NUMBER)
@example("9007199254740993.0")  # Half-way between two doubles.
@example("9007199254740992.9")
@example("9007199254740993.1")
@example("9007199254740995.0")
@example("0.500000000000000166533453693773481063544750213623046875")
@example("5e-324")
@example("2.2250738585072011e-308")
@example("1.7976931348623157e308")
@example("18446744073709551615.5")
@example("0.0000000000000000000000000001234567890123456789")
@example("-0.0")
@example("-0e5")
@example("1.00000000000000000000000000000000000000000000000000000000000000000000000")
def test_a_number_is_the_nearest_double(text: str) -> None:
    expected = json.loads(text)
    found = read(f"[{text}]")
    if isinstance(expected, int):
        fits = len(text.lstrip("-")) <= 18
        assert (found is None) is not fits
        assert not fits or (found[1].dtype, found[1][0]) == (np.int64, expected)
    elif abs(expected) == float("inf"):
        assert found is None
    else:
        assert bits(found[1][0]) == bits(expected)


@settings(max_examples=500, deadline=None)
@given(DOUBLE, st.sampled_from(["{!r}", "{:.16e}", "{:.17g}", "{:.25f}"]))
def test_a_double_comes_back(value: float, form: str) -> None:
    text = form.format(value)
    found = read(f"[{text}]")
    expected = json.loads(text)
    if isinstance(expected, float):
        assert bits(found[1][0]) == bits(expected)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 2**53 - 1), st.integers(-20, 5), st.integers(-1, 1))
def test_near_the_middle_of_two_doubles_it_is_right(digits: int, power: int, off: int) -> None:
    """Decimals exactly half-way between two doubles, and one unit of their last place beside it."""
    value = digits * 2.0**power
    middle = (Decimal(value) + Decimal(float(np.nextafter(value, np.inf)))) / 2
    text = f"{middle + off * Decimal((0, (1,), middle.as_tuple().exponent)):f}"
    text = text if "." in text else text + ".0"
    assert bits(read(f"[{text}]")[1][0]) == bits(float(text))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.data(),
    st.sampled_from([None, (", ", ": "), (",", ":")]),
)
def test_shapes_and_values_are_those_of_json(
    shape: list[int], data: st.DataObject, separators: tuple
) -> None:
    kind = data.draw(st.sampled_from([st.integers(-(10**17), 10**17), DOUBLE, st.integers(-9, 9) | DOUBLE]))
    size = int(np.prod(shape))
    array = np.array(data.draw(st.lists(kind, min_size=size, max_size=size)), object).reshape(shape)
    found = read(json.dumps(array.tolist(), separators=separators, indent=None if separators else 1))
    assert found[0] == tuple(shape)
    flat = array.ravel().tolist()
    expected = np.array(flat, np.int64 if all(isinstance(number, int) for number in flat) else np.float64)
    np.testing.assert_array_equal(found[1], expected)


def test_many_hard_numbers_are_read_too() -> None:
    values = np.random.default_rng(0).normal(size=5000) * 1e-200
    np.testing.assert_array_equal(read(json.dumps(values.tolist()))[1], values)


def test_several_columns_keep_their_own_kind() -> None:
    body = b'{"signature_name":"s","inputs":{"a":[1,2],"b":[[3,4.5]],"c":[6]}}'
    name, row_format, tensors, numbers = json_numbers.read(body)
    assert (name, row_format) == ("s", False)
    assert tensors == (("a", (2,), True, 0, 2), ("b", (1, 2), False, 2, 2), ("c", (1,), True, 4, 1))
    assert [*struct.unpack_from("=qqddq", numbers)] == [1, 2, 3.0, 4.5, 6]


@pytest.mark.parametrize(
    "body",
    [
        *[b"", b"{", b"{}", b"[]", b"null", b'{"inputs":', b'{"inputs":[', b'{"inputs":[1', b'{"inputs":[1]'],
        *[b'{"inputs":[1]}}', b'{"inputs":[1]}x', b'{"inputs":[1]}\0', b'{"inputs":[1\0]}'],
        *[b'\0{"inputs":[1]}', b'{"inputs":1}', b'{"inputs":[]}', b'{"inputs":[[]]}', b'{"inputs":[1,[2]]}'],
        *[b'{"inputs":[[1],2]}', b'{"inputs":[[1],[2,3]]}', b'{"inputs":[1,]}', b'{"inputs":[,1]}'],
        *[b'{"inputs":[true]}', b'{"inputs":{}}', b'{"inputs":{"a":1}}', b'{"inputs":{"a":[1],}}'],
        *[b'{"instances":{"a":[1]}}', b'{"inputs":[1],"instances":[1]}', b'{"inputs":[1],"other":1}'],
        *[b'{"signature_name":"s"}', b'{"signature_name":3,"inputs":[1]}', b"{inputs:[1]}"],
        *[b'{"signature_name":"\\u0061","inputs":[1]}', '{"signature_name":"ä","inputs":[1]}'.encode()],
        *[b'{"inputs" [1]}', b'{"inputs":[' + b"," * 40_000, b'{"inputs":' + b"[" * 40_000],
        *[b'{"inputs":[' + b"9" * 40_000 + b"]}"],
    ],
)  # fmt: skip
def test_everything_else_is_left_to_others(body: bytes) -> None:
    assert json_numbers.read(body) is None


def test_narrowed_numbers_lie_where_tensorflow_need_not_copy_them() -> None:
    for count in range(1, 40):
        values = np.arange(count) + 0.5
        floats: np.ndarray = np.ndarray(
            count, np.float32, *json_numbers.narrow(values.tobytes(), False, 0, count)
        )
        assert floats.ctypes.data % 64 == 0
        np.testing.assert_array_equal(floats, values)


def test_numbers_that_are_not_there_cannot_be_narrowed() -> None:
    numbers = struct.pack("=ddd", 1.5, 1e300, -1e300)
    narrowed, place = json_numbers.narrow(numbers, False, 1, 2)
    assert struct.unpack_from("ff", narrowed, place) == (np.inf, -np.inf)
    for first, count in ((0, 4), (4, 0), (-1, 1), (0, -1), (2**62, 2**62)):
        with pytest.raises(IndexError):
            json_numbers.narrow(numbers, False, first, count)
