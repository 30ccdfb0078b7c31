# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Encodes rows as JSON, compiled: writes a value's Postgres text to a buffer without creating a Python object.

The output equals that of `values` (docs/reference/types.md), and the tests compare the two. This module encodes only
the common forms of the common types. For every other value it calls the type's encoder in `values`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from cython cimport final

cdef enum:
    # Codes for how a column is encoded. `row_runs` has the same numbers.
    UNUSED = 0
    AS_IS = 1
    QUOTED = 2
    TEXT = 3
    BOOLEAN = 4
    FLOATING = 5
    DATE = 6
    TIMESTAMP = 7
    TIMESTAMPTZ = 8
    BY_ENCODER = 9

    MOST_ESCAPED = 6  # largest number of JSON bytes for one byte of text
    SLICE_BYTES = 65536  # longer text is written in slices, so that room for the worst case is reserved per slice
    LARGE_BYTES = 4194304  # a larger buffer grows by a quarter instead of doubling, and `clear` releases it

    DATE_BYTES = 10
    SECONDS_BYTES = 19  # a date and a time without fractional digits

cdef const char *HEX = "0123456789abcdef"
# Escapes of JSON strings by byte. 0: written as it is. Otherwise the letter after the backslash; `u` means \u00XX.
cdef uint8_t ESCAPES[256]
for _byte in range(256):
    ESCAPES[_byte] = c"u" if _byte < 32 else 0
for _byte, _letter in (b'""', b"\\\\", b"\bb", b"\ff", b"\nn", b"\rr", b"\tt"):
    ESCAPES[_byte] = _letter



cdef inline bint needs_escape(uint64_t eight):
    """Whether one of eight bytes is a control character, a quote or a backslash."""
    cdef uint64_t quotes = eight ^ <uint64_t>0x2222222222222222, slashes = eight ^ <uint64_t>0x5C5C5C5C5C5C5C5C
    return (
        ((eight - <uint64_t>0x2020202020202020) & ~eight)
        | ((quotes - <uint64_t>0x0101010101010101) & ~quotes)
        | ((slashes - <uint64_t>0x0101010101010101) & ~slashes)
    ) & <uint64_t>0x8080808080808080 != 0


@final
cdef class Buffer:
    """A growing byte buffer that is reused for every row."""

    def __cinit__(self):
        self.room = 4096
        self.data = <char *>PyMem_Malloc(self.room)
        if self.data == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef char *reserve(self, Py_ssize_t more) except NULL:
        """Make room for `more` bytes and return the address to write them to. The caller adds to `size`."""
        if self.size + more > self.room:
            self.grow(self.size + more)
        return self.data + self.size

    cdef int grow(self, Py_ssize_t needed) except -1:
        cdef Py_ssize_t room = 2 * needed if needed <= LARGE_BYTES else needed + needed // 4
        cdef char *grown = <char *>PyMem_Realloc(self.data, room)
        if grown == NULL:
            raise MemoryError
        self.data = grown
        self.room = room
        return 0

    cdef int clear(self) except -1:
        """Empty the buffer for the next row, and release the memory of a very large row."""
        self.size = 0
        if self.room > 2 * LARGE_BYTES:
            PyMem_Free(self.data)
            self.room = 0
            self.data = <char *>PyMem_Malloc(LARGE_BYTES)
            if self.data == NULL:
                raise MemoryError
            self.room = LARGE_BYTES
        return 0

    cdef bytes as_bytes(self):
        return PyBytes_FromStringAndSize(self.data, self.size)

    cdef int put(self, const char *data, Py_ssize_t length) except -1:
        memcpy(self.reserve(length), data, length)
        self.size += length
        return 0

    cdef int put_bytes(self, bytes data) except -1:
        if data is None:
            raise TypeError("bytes are written, not None")
        return self.put(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef int put_number(self, uint64_t number) except -1:
        cdef char digits[20]
        cdef int at = 20
        while True:
            at -= 1
            digits[at] = <char>(c"0" + number % 10)
            number //= 10
            if number == 0:
                return self.put(digits + at, 20 - at)

    cdef int put_quoted(self, const char *text, Py_ssize_t length) except -1:
        cdef char *out = self.reserve(length + 2)
        out[0] = c'"'
        memcpy(out + 1, text, length)
        out[length + 1] = c'"'
        self.size += length + 2
        return 0

    cdef int put_text(self, const char *text, Py_ssize_t length) except -1:
        """Write text as a JSON string. Text that is not UTF-8 raises UnicodeDecodeError."""
        cdef char *out
        cdef char *to
        cdef Py_ssize_t end, at = 0
        if length <= SLICE_BYTES:
            out = self.reserve(MOST_ESCAPED * length + 2)
            out[0] = c'"'
            to = escaped(out + 1, text, length)
            to[0] = c'"'
            self.size += to + 1 - out
            return 0
        self.put(b'"', 1)
        while at < length:
            end = slice_end(text, at, length)
            out = self.reserve(MOST_ESCAPED * (end - at))
            self.size += escaped(out, text + at, end - at) - out
            at = end
        return self.put(b'"', 1)


cdef inline char *escaped(char *to, const char *text, Py_ssize_t length) except NULL:
    """Write escaped text to `to` and return the end. There must be room for MOST_ESCAPED bytes per byte of text."""
    cdef Py_ssize_t i = 0
    cdef uint8_t byte, escape
    cdef uint64_t eight, every = 0
    while i < length:
        if length - i >= 8:
            memcpy(&eight, text + i, 8)
            if not needs_escape(eight):
                memcpy(to, &eight, 8)
                every |= eight
                to += 8
                i += 8
                continue
        byte = <uint8_t>text[i]
        i += 1
        every |= byte
        escape = ESCAPES[byte]
        if escape == 0:
            to[0] = <char>byte
            to += 1
            continue
        to[0] = c"\\"
        to[1] = <char>escape
        to += 2
        if escape == c"u":
            to[0] = to[1] = c"0"
            to[2] = HEX[byte >> 4]
            to[3] = HEX[byte & 15]
            to += 4
    if every & <uint64_t>0x8080808080808080:
        PyUnicode_DecodeUTF8(text, length, NULL)
    return to


cdef Py_ssize_t slice_end(const char *text, Py_ssize_t at, Py_ssize_t length):
    """Return the end of the slice of about SLICE_BYTES that starts at `at`.

    A slice never ends within a character, so each slice is valid UTF-8 if the whole text is.
    """
    cdef Py_ssize_t end = at + SLICE_BYTES
    if end >= length:
        return length
    for _ in range(3):
        if <uint8_t>text[end] & 0xC0 != 0x80:
            break
        end -= 1
    return end


cdef class Columns:
    """How each of a table's columns is encoded. `row` and `key`: column indexes, with the JSON before each value."""

    def __cinit__(self, list ways, encoders, list row, list key, *_more):
        self.count = len(ways)
        self.row_count = len(row)
        self.key_count = len(key)
        self.ways = <int *>PyMem_Malloc(self.count * sizeof(int))
        self.digits = <int *>PyMem_Malloc(self.count * sizeof(int))
        self.values = <Value *>PyMem_Malloc(self.count * sizeof(Value))
        self.row = <Field *>PyMem_Malloc(self.row_count * sizeof(Field))
        self.key = <Field *>PyMem_Malloc(self.key_count * sizeof(Field))
        if self.ways == NULL or self.digits == NULL or self.values == NULL or self.row == NULL or self.key == NULL:
            raise MemoryError
        for index, (way, digits) in enumerate(ways):
            self.ways[index] = way
            self.digits[index] = digits
        self.encoders = list(encoders)
        if len(self.encoders) != self.count:
            raise ValueError("another number of encoders")
        self.kept = [*row, *key]  # keeps these alive: `before` points into them
        self.fill(self.row, row)
        self.fill(self.key, key)
        self.key_out = Buffer()

    def __dealloc__(self):
        PyMem_Free(self.ways)
        PyMem_Free(self.digits)
        PyMem_Free(self.values)
        PyMem_Free(self.row)
        PyMem_Free(self.key)

    cdef int fill(self, Field *fields, list members) except -1:
        cdef bytes before
        for at, (index, before) in enumerate(members):
            if not 0 <= index < self.count:
                raise ValueError("a column that is not there")
            if before is None:
                raise TypeError("bytes stand before a value, not None")
            fields[at].index = index
            fields[at].before = PyBytes_AS_STRING(before)
            fields[at].before_size = PyBytes_GET_SIZE(before)
        return 0

    cdef int put_row(self, Buffer out, Value *values, Value *known) except -1:
        """Write the row as a JSON object. `known`: the old row's values, already in the buffer, or NULL."""
        cdef Value *value
        cdef Py_ssize_t began
        cdef int i, index
        for i in range(self.row_count):
            index = self.row[i].index
            out.put(self.row[i].before, self.row[i].before_size)
            value = &values[index]
            if known != NULL and same(value, &known[index]):
                out.reserve(known[index].size)
                out.put(out.data + known[index].at, known[index].size)
                continue
            began = out.size
            self.put_value(out, index, value)
            value.at = began
            value.size = out.size - began
        return out.put(b"}", 1)

    cdef int put_key(self) except -1:
        """Write the key as a JSON object to `key_out`."""
        cdef Buffer out = self.key_out
        cdef int i
        out.clear()
        for i in range(self.key_count):
            out.put(self.key[i].before, self.key[i].before_size)
            self.put_value(out, self.key[i].index, &self.values[self.key[i].index])
        return out.put(b"}", 1)

    cdef int put_value(self, Buffer out, int index, Value *value) except -1:
        cdef int way = self.ways[index]
        cdef const char *text = value.text
        cdef Py_ssize_t length = value.length
        if length < 0:
            return out.put(b"null", 4)
        if way == AS_IS:
            return out.put(text, length)
        if way == QUOTED:
            return out.put_quoted(text, length)
        if way == TEXT:
            return out.put_text(text, length)
        if way == BOOLEAN and length == 1 and text[0] == c"t":
            return out.put(b"true", 4)
        if way == BOOLEAN and length == 1 and text[0] == c"f":
            return out.put(b"false", 5)
        if way == FLOATING and (memchr(text, c".", length) != NULL or memchr(text, c"e", length) != NULL):
            return out.put(text, length)
        if way in (DATE, TIMESTAMP, TIMESTAMPTZ) and put_time(out, way, self.digits[index], text, length):
            return 0
        return out.put_bytes(self.encoders[index](PyBytes_FromStringAndSize(text, length)))


cdef int put_time(Buffer out, int way, int digits, const char *text, Py_ssize_t length) except -1:
    """Write a date or time with a year of four digits, in UTC. Returns 0, without writing, for any other form."""
    cdef Py_ssize_t shown = length - 3 if way == TIMESTAMPTZ else length  # without the +00 at its end
    cdef Py_ssize_t zeros = 0, i
    cdef char *to
    if way == DATE:
        if length != DATE_BYTES:
            return 0
    elif shown != SECONDS_BYTES and not (SECONDS_BYTES + 2 <= shown <= SECONDS_BYTES + 7):
        return 0
    for i in range(length):
        if not is_usual(text[i], i):
            return 0
    if way == TIMESTAMPTZ:
        if memcmp(text + shown, b"+00", 3) != 0:
            return 0
        zeros = digits - (shown - SECONDS_BYTES - 1 if shown > SECONDS_BYTES else 0)
        if zeros < 0:
            return 0
    to = out.reserve(shown + zeros + 4)
    to[0] = c'"'
    memcpy(to + 1, text, shown)
    if way != DATE:
        to[1 + DATE_BYTES] = c"T"
    to += 1 + shown
    if way == TIMESTAMPTZ and shown == SECONDS_BYTES and digits > 0:
        to[0] = c"."
        to += 1
    for i in range(zeros):
        to[i] = c"0"
    to += zeros
    to[0] = c"Z"
    to[1] = c'"'
    out.size = to + 2 - out.data
    return 1


cdef inline bint is_usual(char character, Py_ssize_t place):
    """Whether the character can be at this index of a value such as `2024-05-06 07:08:09.123456+00`."""
    if place in (4, 7):
        return character == c"-"
    if place == DATE_BYTES:
        return character == c" "
    if place in (13, 16):
        return character == c":"
    if place == SECONDS_BYTES:
        return character == c"." or character == c"+"
    return c"0" <= character <= c"9" or (place > SECONDS_BYTES and character == c"+")


cdef inline bint same(Value *one, Value *other):
    if one.length != other.length:
        return False
    return one.length <= 0 or one.text == other.text or memcmp(one.text, other.text, one.length) == 0
