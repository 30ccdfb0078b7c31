# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled hot loops of `row_runs` and `cdc.snapshot.copy_rows`: convert messages or COPY lines to keys and events.

Compiled at installation if there is a C compiler, and used if it was compiled. The output equals that of the Python
loops, and the tests compare the two. As in Python, a message that is not a whole row of text and NULL ends a run.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from cdc.encoding.native_json cimport NULL_LENGTH, Buffer, Columns, Value
from cdc.kafka.direct_produce cimport RowSender

from cdc.encoding.values import MALFORMED_ROW

cdef enum:
    HEAD_BYTES = 25  # precede every message and contain its LSN
    LSN_AT = 1
    KIND_BYTES = 8
    VALUE_HEAD_BYTES = 5
    LEFT_OUT = -2
    POSITION_BYTES = 17  # the first part of a version, including the point after it
    SEQ_DIGITS = 16  # at most
    PART_COUNT = 7  # of `parts`

cdef uint32_t NO_VALUE = 0xFFFFFFFF

cdef const char *HEX = "0123456789abcdef"


cdef class NativeRun(Columns):
    """Converts the row messages of one table with one set of columns. `values` is the new row, `old` the old row."""

    cdef Value *old
    cdef Buffer value_out

    def __cinit__(self, list ways, *_more):
        self.old = <Value *>PyMem_Malloc(len(ways) * sizeof(Value))
        if self.old == NULL:
            raise MemoryError
        self.value_out = Buffer()

    def __dealloc__(self):
        PyMem_Free(self.old)

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
        """See `row_runs.RowRun.take`."""
        cdef bytes raw, kind
        if not 0 <= at <= end <= len(items):  # checked here, since the code below is compiled without bounds checks
            raise IndexError(end)
        if len(parts) != PART_COUNT:
            raise ValueError("another number of parts")
        cdef bytes head = parts[0], middle = parts[1], to_sequence = parts[2], to_lsn = parts[3]
        cdef bytes to_seq = parts[4], to_order = parts[5], to_table_order = parts[6]
        cdef const char *data
        cdef Py_ssize_t lsn_at, lsn_size
        cdef uint64_t lsn
        cdef Buffer out = self.value_out
        cdef RowSender outlet = emit if isinstance(emit, RowSender) else None
        cdef char record_version[POSITION_BYTES + SEQ_DIGITS]
        cdef Py_ssize_t version_size
        if at == end:
            return at, seq, order, table_order
        if PyBytes_GET_SIZE(version) != POSITION_BYTES:
            raise ValueError("not the beginning of a version")
        memcpy(record_version, PyBytes_AS_STRING(version), POSITION_BYTES)
        kind = items[at][HEAD_BYTES : HEAD_BYTES + KIND_BYTES]
        if len(kind) != KIND_BYTES:
            return at, seq, order, table_order
        while at < end and at < len(items):  # `emit` is the caller's code and may shorten the list
            raw = items[at]
            if raw is None:
                raise TypeError("a message is bytes, not None")
            data = PyBytes_AS_STRING(raw)
            if (
                PyBytes_GET_SIZE(raw) < HEAD_BYTES + KIND_BYTES
                or memcmp(data + HEAD_BYTES, PyBytes_AS_STRING(kind), KIND_BYTES) != 0
                or not self.parse(data, PyBytes_GET_SIZE(raw), has_old_row)
            ):
                break
            out.clear()
            out.put_bytes(head)
            try:
                if has_old_row:
                    self.put_row(out, self.old, NULL)
                    out.put_bytes(middle)
                    self.put_row(out, self.values, self.old)
                else:
                    out.put(b"null", 4)
                    out.put_bytes(middle)
                    self.put_row(out, self.values, NULL)
                self.put_key()
            except MALFORMED_ROW:
                break  # the caller then decodes the message with `decoder`, which reports the error
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
            version_size = POSITION_BYTES + put_seq(record_version + POSITION_BYTES, seq)
            if outlet is None or not outlet.offer(
                topic, self.key_out.data, self.key_out.size, out.data, out.size, record_version, version_size
            ):
                emit(
                    topic,
                    self.key_out.as_bytes(),
                    out.as_bytes(),
                    [("v", PyBytes_FromStringAndSize(record_version, version_size))],
                    -1,
                )
            out.clear()  # here, since it may take long until the next row arrives
        return at, seq, order, table_order

    cdef bint parse(self, const char *data, Py_ssize_t size, bint has_old_row):
        """Locate each value in the message. Returns False if the row is not whole or its key has changed."""
        cdef Py_ssize_t at = HEAD_BYTES + KIND_BYTES
        cdef int i
        at = parse_tuple(self.old if has_old_row else self.values, self.count, data, at, size, False)
        if at < 0:
            return False
        if has_old_row:
            if at + 3 > size or data[at] != c"N":
                return False
            if <int>((<uint8_t>data[at + 1]) << 8 | <uint8_t>data[at + 2]) != self.count:
                return False
            at = parse_tuple(self.values, self.count, data, at + 3, size, True)
            if at < 0:
                return False
            for i in range(self.count):
                if self.values[i].length == LEFT_OUT:
                    self.values[i] = self.old[i]
        if at != size:
            return False
        for at in range(self.key_count):
            i = self.key[at].index
            if self.values[i].length < 0 or (has_old_row and not same_text(&self.old[i], &self.values[i])):
                return False
        return True


cdef class NativeLines(Columns):
    """Converts rows of a COPY to keys and events. `head` and `tail`: the parts of an event around the row."""

    cdef bytes head
    cdef bytes tail
    cdef Buffer value_out
    cdef Buffer plain

    def __cinit__(self, list ways, encoders, list row, list key, bytes head, bytes tail):
        self.head = head
        self.tail = tail
        self.value_out = Buffer()
        self.plain = Buffer()

    def encode(self, rows, bint binary=False):
        """Return the key and the event of each row. A row with a wrong number of fields raises ValueError.

        `binary`: the rows are in COPY's binary format, with all values sent as text.
        """
        cdef Buffer out = self.value_out
        cdef bytes row
        cdef list made = []
        for row in rows:
            if row is None:
                raise TypeError("a row is bytes, not None")
            if binary:
                self.read_tuple(PyBytes_AS_STRING(row), PyBytes_GET_SIZE(row))
            else:
                self.split(PyBytes_AS_STRING(row), PyBytes_GET_SIZE(row) - 1)
            out.clear()
            out.put_bytes(self.head)
            self.put_row(out, self.values, NULL)
            out.put_bytes(self.tail)
            self.put_key()
            made.append((self.key_out.as_bytes(), out.as_bytes()))
        return made

    cdef int read_tuple(self, const char *data, Py_ssize_t size) except -1:
        """Parse a row of COPY's binary format: the number of fields, then each field after its length (-1: NULL)."""
        cdef Py_ssize_t at = 2
        cdef uint32_t length
        cdef int i
        if size < 2 or <int>((<uint8_t>data[0]) << 8 | <uint8_t>data[1]) != self.count:
            raise ValueError("another number of fields")
        for i in range(self.count):
            if size - at < 4:
                raise ValueError("too few fields")
            length = read_uint32(data + at)
            at += 4
            if length == NO_VALUE:
                self.values[i].length = NULL_LENGTH
                continue
            if length > size - at:
                raise ValueError("a field that is longer than its row")
            self.values[i].text = data + at
            self.values[i].length = length
            at += length
        if at != size:
            raise ValueError("too many fields")
        return 0

    cdef int split(self, const char *line, Py_ssize_t size) except -1:
        """Parse a line of COPY's text format. Tabs separate fields; backslashes start NULL or an escape."""
        cdef const char *at = line
        cdef const char *end = line + size
        cdef const char *tab
        cdef bint has_escapes
        cdef int i
        if size < 0:
            raise ValueError("a line without an end")
        has_escapes = memchr(line, c"\\", size) != NULL
        self.plain.clear()
        self.plain.reserve(size)  # must not grow later, since values point into it
        for i in range(self.count):
            if at > end:
                raise ValueError("too few fields")
            tab = <const char *>memchr(at, c"\t", end - at)
            if tab == NULL:
                tab = end
            self.values[i].text = at
            self.values[i].length = tab - at
            if has_escapes and memchr(at, c"\\", tab - at) != NULL:
                self.unescape(&self.values[i])
            at = tab + 1
        if at != end + 1:
            raise ValueError("too many fields")
        return 0

    cdef void unescape(self, Value *value):
        cdef const char *at = value.text
        cdef const char *end = at + value.length
        cdef char *to = self.plain.data + self.plain.size
        cdef char *began = to
        if value.length == 2 and at[1] == c"N":  # the field is a backslash and N
            value.length = NULL_LENGTH
            return
        while at < end:
            if at[0] == c"\\" and at + 1 < end:
                at += 1
                to[0] = unescaped(at[0])
            else:
                to[0] = at[0]
            at += 1
            to += 1
        value.text = began
        value.length = to - began
        self.plain.size += value.length


cdef inline char unescaped(char letter):
    if letter == c"b":
        return c"\b"
    if letter == c"f":
        return c"\f"
    if letter == c"n":
        return c"\n"
    if letter == c"r":
        return c"\r"
    if letter == c"t":
        return c"\t"
    return c"\v" if letter == c"v" else letter


cdef Py_ssize_t parse_tuple(
    Value *values, int count, const char *data, Py_ssize_t at, Py_ssize_t size, bint may_leave_out
):
    """Locate the values of a tuple. Returns its end, or -1 if it is not whole or longer than the message."""
    cdef int i
    cdef char kind
    cdef uint32_t length
    for i in range(count):
        if at >= size:
            return -1
        kind = data[at]
        if kind == c"t":
            if size - at < VALUE_HEAD_BYTES:
                return -1
            length = read_uint32(data + at + 1)
            at += VALUE_HEAD_BYTES
            if length > size - at:
                return -1
            values[i].text = data + at
            values[i].length = length
            at += length
        elif kind == c"n":
            values[i].length = NULL_LENGTH
            at += 1
        elif kind == c"u" and may_leave_out:
            values[i].length = LEFT_OUT
            at += 1
        else:
            return -1
    return at


cdef inline bint same_text(Value *one, Value *other):
    if one.length != other.length:
        return False
    return one.length <= 0 or one.text == other.text or memcmp(one.text, other.text, one.length) == 0


cdef inline uint32_t read_uint32(const char *data):
    cdef const uint8_t *byte = <const uint8_t *>data
    return (<uint32_t>byte[0] << 24) | (<uint32_t>byte[1] << 16) | (<uint32_t>byte[2] << 8) | byte[3]


cdef inline uint64_t read_uint64(const char *data):
    return (<uint64_t>read_uint32(data) << 32) | read_uint32(data + 4)


cdef Py_ssize_t put_seq(char *to, uint64_t seq):
    """Write at least eight hexadecimal digits and return their number."""
    cdef char digits[SEQ_DIGITS]
    cdef int at = SEQ_DIGITS
    while seq != 0 or at > SEQ_DIGITS - 8:
        at -= 1
        digits[at] = HEX[seq & 15]
        seq >>= 4
    memcpy(to, digits + at, SEQ_DIGITS - at)
    return SEQ_DIGITS - at
