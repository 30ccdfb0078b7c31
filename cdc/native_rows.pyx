# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, embedsignature=True
"""`row_run` again, compiled: a run of row messages becomes records without a Python object per value.

Built at installation where there is a C compiler, and used where it was built; the bytes are those of `row_run`, to
which the tests hold it. Values of the common types are written straight into a buffer; for every other type, and for
every value of an unusual look, the type's own encoder (`values`) is called. What is not a whole row of text and NULL
ends the run, as it does there.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from cdc.row_reader import MALFORMED_ROW

cdef enum:
    # How a column is written; `row_run` names them.
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

    HEAD_BYTES = 25  # before every message; its LSN stands in it
    LSN_AT = 1
    KIND_BYTES = 8
    VALUE_HEAD_BYTES = 5
    NULL_LENGTH = -1
    LEFT_OUT = -2

cdef const char *HEX = "0123456789abcdef"
# What JSON has no room for inside quotes: 0 as it is, else the letter behind the backslash, or u.
cdef uint8_t ESCAPES[256]
for _byte in range(256):
    ESCAPES[_byte] = 117 if _byte < 32 else 0
for _byte, _letter in (b'""', b"\\\\", b"\bb", b"\ff", b"\nn", b"\rr", b"\tt"):
    ESCAPES[_byte] = _letter


cdef uint64_t ONES = 0x0101010101010101
cdef uint64_t HIGH_BITS = 0x8080808080808080


cdef inline bint needs_escape(uint64_t eight):
    """Whether one of eight bytes is a control character, a quote or a backslash."""
    cdef uint64_t quotes = eight ^ ONES * 34, slashes = eight ^ ONES * 92
    return (
        ((eight - ONES * 32) & ~eight) | ((quotes - ONES) & ~quotes) | ((slashes - ONES) & ~slashes)
    ) & HIGH_BITS != 0


cdef struct Value:
    const char *text
    Py_ssize_t length  # or NULL_LENGTH, LEFT_OUT
    # Where it stands in the buffer once it is written there: the same value again is copied.
    Py_ssize_t at
    Py_ssize_t size


cdef struct Field:
    int index
    const char *before  # the JSON that stands before its value
    Py_ssize_t before_size


cdef class Buffer:
    """Bytes that grow, reused for every row."""

    cdef char *data
    cdef Py_ssize_t size
    cdef Py_ssize_t room

    def __cinit__(self):
        self.room = 4096
        self.data = <char *>PyMem_Malloc(self.room)
        if self.data == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef char *reserve(self, Py_ssize_t more) except NULL:
        """Room for so many bytes more; where to write them. Add what was written to `size`."""
        cdef char *grown
        if self.size + more > self.room:
            grown = <char *>PyMem_Realloc(self.data, 2 * (self.size + more))
            if grown == NULL:
                raise MemoryError
            self.data = grown
            self.room = 2 * (self.size + more)
        return self.data + self.size

    cdef int put(self, const char *data, Py_ssize_t length) except -1:
        memcpy(self.reserve(length), data, length)
        self.size += length
        return 0

    cdef int put_bytes(self, bytes data) except -1:
        return self.put(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef int put_number(self, uint64_t number) except -1:
        cdef char digits[20]
        cdef int at = 20
        while True:
            at -= 1
            digits[at] = <char>(48 + number % 10)
            number //= 10
            if number == 0:
                return self.put(digits + at, 20 - at)

    cdef int put_quoted(self, const char *text, Py_ssize_t length) except -1:
        cdef char *out = self.reserve(length + 2)
        out[0] = 34
        memcpy(out + 1, text, length)
        out[length + 1] = 34
        self.size += length + 2
        return 0

    cdef int put_text(self, const char *text, Py_ssize_t length) except -1:
        """As a JSON string. Text that is not UTF-8 raises UnicodeDecodeError."""
        cdef char *out = self.reserve(6 * length + 2)
        cdef char *to = out
        cdef Py_ssize_t i
        cdef uint8_t byte, escape
        cdef uint64_t eight, every = 0
        to[0] = 34
        to += 1
        i = 0
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
            to[0] = 92
            to[1] = <char>escape
            to += 2
            if escape == 117:
                to[0] = to[1] = 48
                to[2] = HEX[byte >> 4]
                to[3] = HEX[byte & 15]
                to += 4
        if every & HIGH_BITS:
            PyUnicode_DecodeUTF8(text, length, NULL)
        to[0] = 34
        self.size += to + 1 - out
        return 0


cdef class NativeRun:
    """One table at one state of its columns. `row` and `key`: (column, the JSON that stands before its value)."""

    cdef int count
    cdef int *ways
    cdef int *digits
    cdef Value *old
    cdef Value *new
    cdef Field *row
    cdef Field *key
    cdef int row_count
    cdef int key_count
    cdef list encoders
    cdef list kept  # what `before` points into
    cdef Buffer value_out
    cdef Buffer key_out

    def __cinit__(self, list ways, encoders, list row, list key):
        self.count = len(ways)
        self.ways = <int *>PyMem_Malloc(self.count * sizeof(int))
        self.digits = <int *>PyMem_Malloc(self.count * sizeof(int))
        self.old = <Value *>PyMem_Malloc(self.count * sizeof(Value))
        self.new = <Value *>PyMem_Malloc(self.count * sizeof(Value))
        self.row_count = len(row)
        self.key_count = len(key)
        self.row = <Field *>PyMem_Malloc(self.row_count * sizeof(Field))
        self.key = <Field *>PyMem_Malloc(self.key_count * sizeof(Field))
        if self.ways == NULL or self.digits == NULL or self.old == NULL or self.new == NULL:
            raise MemoryError
        if self.row == NULL or self.key == NULL:
            raise MemoryError
        for index, (way, digits) in enumerate(ways):
            self.ways[index] = way
            self.digits[index] = digits
        self.encoders = list(encoders)
        self.kept = [*row, *key]
        self.fill(self.row, row)
        self.fill(self.key, key)
        self.value_out = Buffer()
        self.key_out = Buffer()

    def __dealloc__(self):
        PyMem_Free(self.ways)
        PyMem_Free(self.digits)
        PyMem_Free(self.old)
        PyMem_Free(self.new)
        PyMem_Free(self.row)
        PyMem_Free(self.key)

    cdef int fill(self, Field *fields, list members) except -1:
        cdef bytes before
        for at, (index, before) in enumerate(members):
            if not 0 <= index < self.count:
                raise ValueError("a column that is not there")
            fields[at].index = index
            fields[at].before = PyBytes_AS_STRING(before)
            fields[at].before_size = PyBytes_GET_SIZE(before)
        return 0

    def take(
        self,
        list items not None,
        Py_ssize_t at,
        Py_ssize_t end,
        bint has_old_row,
        list parts not None,
        bytes ending not None,
        bytes version not None,
        str topic not None,
        object emit,
        int64_t skip_through,
        int64_t seq,
        int64_t order,
        int64_t table_order,
    ):
        """See `row_run.PythonRun.take`."""
        cdef bytes raw, kind, key, value
        cdef bytes head = parts[0], middle = parts[1], to_sequence = parts[2], to_lsn = parts[3]
        cdef bytes to_seq = parts[4], to_order = parts[5], to_table_order = parts[6]
        cdef const char *data
        cdef Py_ssize_t lsn_at, lsn_size
        cdef uint64_t lsn
        cdef Buffer out = self.value_out
        if end > len(items):
            raise IndexError(end)
        kind = items[at][HEAD_BYTES : HEAD_BYTES + KIND_BYTES]
        if len(kind) != KIND_BYTES:
            return at, seq, order, table_order
        while at < end:
            raw = items[at]
            data = PyBytes_AS_STRING(raw)
            if (
                PyBytes_GET_SIZE(raw) < HEAD_BYTES + KIND_BYTES
                or memcmp(data + HEAD_BYTES, PyBytes_AS_STRING(kind), KIND_BYTES) != 0
                or not self.parse(data, PyBytes_GET_SIZE(raw), has_old_row)
            ):
                break
            out.size = 0
            out.put_bytes(head)
            try:
                if has_old_row:
                    self.put_row(self.old, NULL)
                    out.put_bytes(middle)
                    self.put_row(self.new, self.old)
                else:
                    out.put(b"null", 4)
                    out.put_bytes(middle)
                    self.put_row(self.new, NULL)
                key = self.make_key()
            except MALFORMED_ROW:
                break  # the ordinary way says what is wrong
            at += 1
            seq += 1
            order += 1
            table_order += 1
            if seq <= skip_through:
                continue
            lsn = read_uint64(data + LSN_AT)
            out.put_bytes(to_sequence)
            lsn_at = out.size
            out.put_number(lsn)
            lsn_size = out.size - lsn_at
            out.put_bytes(to_lsn)
            out.reserve(lsn_size)
            out.put(out.data + lsn_at, lsn_size)
            out.put_bytes(to_seq)
            out.put_number(seq)
            out.put_bytes(to_order)
            out.put_number(order)
            out.put_bytes(to_table_order)
            out.put_number(table_order)
            out.put_bytes(ending)
            value = PyBytes_FromStringAndSize(out.data, out.size)
            emit(topic, key, value, [("v", version_of(version, seq))], -1)
        return at, seq, order, table_order

    cdef bint parse(self, const char *data, Py_ssize_t size, bint has_old_row):
        """Where each value stands. False: not a whole row, or a key that changed."""
        cdef Py_ssize_t at = HEAD_BYTES + KIND_BYTES
        cdef int i
        at = parse_tuple(self.old if has_old_row else self.new, self.count, data, at, size, False)
        if at < 0:
            return False
        if has_old_row:
            if at + 3 > size or data[at] != 78:  # N
                return False
            if <int>((<uint8_t>data[at + 1]) << 8 | <uint8_t>data[at + 2]) != self.count:
                return False
            at = parse_tuple(self.new, self.count, data, at + 3, size, True)
            if at < 0:
                return False
            for i in range(self.count):
                if self.new[i].length == LEFT_OUT:
                    self.new[i] = self.old[i]
        if at != size:
            return False
        for at in range(self.key_count):
            i = self.key[at].index
            if self.new[i].length < 0 or (has_old_row and not same(&self.old[i], &self.new[i])):
                return False
        return True

    cdef int put_row(self, Value *values, Value *known) except -1:
        """The row as a JSON object. `known`: values that stand in the buffer already."""
        cdef Buffer out = self.value_out
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
        out.put(b"}", 1)
        return 0

    cdef bytes make_key(self):
        cdef Buffer out = self.key_out
        cdef int i
        out.size = 0
        for i in range(self.key_count):
            out.put(self.key[i].before, self.key[i].before_size)
            self.put_value(out, self.key[i].index, &self.new[self.key[i].index])
        out.put(b"}", 1)
        return PyBytes_FromStringAndSize(out.data, out.size)

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
        if way == BOOLEAN and length == 1 and text[0] == 116:  # t
            return out.put(b"true", 4)
        if way == BOOLEAN and length == 1 and text[0] == 102:  # f
            return out.put(b"false", 5)
        if way == FLOATING and (memchr(text, 46, length) != NULL or memchr(text, 101, length) != NULL):  # . or e
            return out.put(text, length)
        if way in (DATE, TIMESTAMP, TIMESTAMPTZ) and put_time(out, way, self.digits[index], text, length):
            return 0
        return out.put_bytes(self.encoders[index](PyBytes_FromStringAndSize(text, length)))


cdef int put_time(Buffer out, int way, int digits, const char *text, Py_ssize_t length) except -1:
    """The usual forms: a year of four digits, UTC. 0: it is none of them."""
    cdef Py_ssize_t shown = length - (3 if way == TIMESTAMPTZ else 0)  # without +00
    cdef Py_ssize_t i, zeros
    cdef char *to
    for i in range(length):
        if not is_usual(text[i], i):
            return 0
    if way == DATE:
        if length != 10:
            return 0
        zeros = 0
    else:
        # Seconds stand alone or have a point and one to six digits.
        if shown != 19 and not (21 <= shown <= 26 and text[19] == 46):
            return 0
        zeros = 0
    if way == TIMESTAMPTZ:
        if text[shown] != 43 or text[shown + 1] != 48 or text[shown + 2] != 48:
            return 0
        zeros = digits - (shown - 20 if shown > 19 else 0)
        if zeros < 0:
            return 0
    to = out.reserve(shown + zeros + 4)
    to[0] = 34
    memcpy(to + 1, text, shown)
    if way != DATE:
        to[11] = 84  # T
    to += 1 + shown
    if way == TIMESTAMPTZ and shown == 19 and digits > 0:
        to[0] = 46
        to += 1
    for i in range(zeros):
        to[i] = 48
    to += zeros
    to[0] = 90  # Z
    to[1] = 34
    out.size = to + 2 - out.data
    return 1


cdef inline bint is_usual(char character, Py_ssize_t place):
    """At this place of `2024-05-06 07:08:09.123456+00`."""
    if place in (4, 7):
        return character == 45
    if place == 10:
        return character == 32
    if place in (13, 16):
        return character == 58
    if place < 19:
        return 48 <= character <= 57
    return 48 <= character <= 57 or character == 46 or character == 43


cdef Py_ssize_t parse_tuple(
    Value *values, int count, const char *data, Py_ssize_t at, Py_ssize_t size, bint may_leave_out
):
    """Where the tuple ends; -1 where it is not whole, or longer than the message."""
    cdef int i
    cdef char kind
    cdef uint32_t length
    for i in range(count):
        if at >= size:
            return -1
        kind = data[at]
        if kind == 116:  # t
            if size - at < VALUE_HEAD_BYTES:
                return -1
            length = read_uint32(data + at + 1)
            at += VALUE_HEAD_BYTES
            if length > size - at:
                return -1
            values[i].text = data + at
            values[i].length = length
            at += length
        elif kind == 110:  # n
            values[i].length = NULL_LENGTH
            at += 1
        elif kind == 117 and may_leave_out:  # u
            values[i].length = LEFT_OUT
            at += 1
        else:
            return -1
    return at


cdef inline bint same(Value *one, Value *other):
    if one.length != other.length:
        return False
    return one.length <= 0 or one.text == other.text or memcmp(one.text, other.text, one.length) == 0


cdef inline uint32_t read_uint32(const char *data):
    cdef const uint8_t *byte = <const uint8_t *>data
    return (<uint32_t>byte[0] << 24) | (<uint32_t>byte[1] << 16) | (<uint32_t>byte[2] << 8) | byte[3]


cdef inline uint64_t read_uint64(const char *data):
    return (<uint64_t>read_uint32(data) << 32) | read_uint32(data + 4)


cdef bytes version_of(bytes position, uint64_t seq):
    """`position` ends with the point; at least eight hexadecimal digits follow it."""
    cdef char digits[16]
    cdef int at = 16
    cdef Py_ssize_t length = PyBytes_GET_SIZE(position)
    cdef bytes made
    while seq != 0 or at > 8:
        at -= 1
        digits[at] = HEX[seq & 15]
        seq >>= 4
    made = PyBytes_FromStringAndSize(NULL, length + 16 - at)
    memcpy(PyBytes_AS_STRING(made), PyBytes_AS_STRING(position), length)
    memcpy(PyBytes_AS_STRING(made) + length, digits + at, 16 - at)
    return made
