# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The audit's compiled loops: hashes of many rows, and the record batches of a topic as columns of numbers.

The extension is built at installation if there is a C compiler. Without it, `cdc.audit.row_content` and
`spark_jobs.audit.topic_read_task` compute the same numbers in Python; tests compare the two. Records that are not plain
events of Tailrace are returned undecoded, and Python decodes them.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp

from cython cimport final


cdef enum:
    STAMP_BYTES = 25
    STAMP_DIGITS = 16
    MOST_ID_DIGITS = 100
    MOST_VARINT_BITS = 63

cdef extern from *:
    """
    #define P1 0x9E3779B185EBCA87ULL
    #define P2 0xC2B2AE3D27D4EB4FULL
    #define P3 0x165667B19E3779F9ULL
    #define P4 0x85EBCA77C2B2AE63ULL
    #define P5 0x27D4EB2F165667C5ULL
    """
    const uint64_t P1, P2, P3, P4, P5

cdef bytes _HEAD = b'{"before":null,"after":'
cdef bytes _SOURCE = b',"source":{"version":"'
cdef bytes _MARKER = b'{"__truncate":'
cdef const char *HEAD = PyBytes_AS_STRING(_HEAD)
cdef const char *SOURCE = PyBytes_AS_STRING(_SOURCE)
cdef const char *MARKER = PyBytes_AS_STRING(_MARKER)
cdef Py_ssize_t HEAD_BYTES = len(_HEAD)
cdef Py_ssize_t SOURCE_BYTES = len(_SOURCE)
cdef Py_ssize_t MARKER_BYTES = len(_MARKER)


# -- xxh64, as specified ---------------------------------------------------------------------------------------------


cdef inline uint64_t rotated(uint64_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (64 - bits))


cdef inline uint64_t four(const uint8_t *at) noexcept nogil:
    return <uint64_t>at[0] | <uint64_t>at[1] << 8 | <uint64_t>at[2] << 16 | <uint64_t>at[3] << 24


cdef inline uint64_t eight(const uint8_t *at) noexcept nogil:
    return four(at) | four(at + 4) << 32


cdef inline uint64_t mixed(uint64_t sum, uint64_t value) noexcept nogil:
    return rotated(sum + value * P2, 31) * P1


cdef uint64_t xxh64(const uint8_t *at, Py_ssize_t size, uint64_t seed) noexcept nogil:
    cdef const uint8_t *end = at + size
    cdef uint64_t a, b, c, d, found
    if size >= 32:
        a, b, c, d = seed + P1 + P2, seed + P2, seed, seed - P1
        while at + 32 <= end:
            a = mixed(a, eight(at))
            b = mixed(b, eight(at + 8))
            c = mixed(c, eight(at + 16))
            d = mixed(d, eight(at + 24))
            at += 32
        found = rotated(a, 1) + rotated(b, 7) + rotated(c, 12) + rotated(d, 18)
        found = (found ^ mixed(0, a)) * P1 + P4
        found = (found ^ mixed(0, b)) * P1 + P4
        found = (found ^ mixed(0, c)) * P1 + P4
        found = (found ^ mixed(0, d)) * P1 + P4
    else:
        found = seed + P5
    found += <uint64_t>size
    while at + 8 <= end:
        found = rotated(found ^ mixed(0, eight(at)), 27) * P1 + P4
        at += 8
    if at + 4 <= end:
        found = rotated(found ^ (four(at) * P1), 23) * P2 + P3
        at += 4
    while at < end:
        found = rotated(found ^ (at[0] * P5), 11) * P1
        at += 1
    found = (found ^ (found >> 33)) * P2
    found = (found ^ (found >> 29)) * P3
    return found ^ (found >> 32)


def digests(list data not None, uint64_t seed):
    """Return the concatenated hashes of the given bytes objects, eight big-endian bytes each."""
    cdef bytes each
    cdef uint64_t found
    cdef Py_ssize_t number = 0
    cdef int at
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 8 * len(data))
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(made)
    for each in data:
        if each is None:
            raise TypeError("bytes are hashed, not None")
        found = xxh64(<const uint8_t *>PyBytes_AS_STRING(each), PyBytes_GET_SIZE(each), seed)
        for at in range(8):
            to[at] = <uint8_t>(found >> (56 - 8 * at))
        to += 8
    return made


# -- records ---------------------------------------------------------------------------------------------------------


cdef struct Row:
    uint64_t id
    uint64_t content
    uint64_t position
    int64_t offset
    uint32_t seq
    uint32_t live


@final
cdef class Cursor:
    """Reads forward in a buffer, and never past its end."""

    cdef const uint8_t *at
    cdef const uint8_t *end

    cdef int64_t varint(self) except? -1:
        cdef uint64_t value = 0
        cdef int shift = 0
        while self.at < self.end and shift <= MOST_VARINT_BITS:
            value |= <uint64_t>(self.at[0] & 127) << shift
            self.at += 1
            if (self.at - 1)[0] < 128:
                return <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
            shift += 7
        raise ValueError("a record ends within a number")

    cdef const uint8_t *skip(self, int64_t size) except NULL:
        """Advance by `size` bytes and return the previous place. A negative size stands for NULL and takes no bytes."""
        cdef const uint8_t *before = self.at
        if size > self.end - self.at:
            raise ValueError("a record ends within a field")
        if size > 0:
            self.at += size
        return before


@final
cdef class NativeRecords:
    """Collects the rows of one partition. `take` adds rows.

    `exact`: equal rows have equal bytes. `by_id`: rows are identified by their id in stores. For a key of one column
    (`one_column`) that is a non-negative integer, the id is its digits. Python computes all other ids.
    """

    cdef Row *rows
    cdef Py_ssize_t count
    cdef Py_ssize_t room
    cdef bint exact
    cdef bint by_id
    cdef bint one_column
    cdef uint64_t seed

    def __cinit__(self, *, bint exact, bint by_id, bint one_column, uint64_t seed):
        self.rows = NULL
        self.exact, self.by_id, self.one_column, self.seed = exact, by_id, one_column, seed

    def __dealloc__(self):
        free(self.rows)

    def __len__(self):
        return self.count

    def take(self, bytes data not None, Py_ssize_t records, int64_t base, int64_t first, int64_t end):
        """Add the records of a batch with offsets from `first` up to, but not including, `end`.

        Return (offset, key, value, version header) of each record that is not a plain event. Raise ValueError if the
        bytes are not the content of a batch.
        """
        cdef Cursor cursor = Cursor()
        cdef const uint8_t *stop
        cdef const uint8_t *key
        cdef const uint8_t *value
        cdef const uint8_t *stamp
        cdef int64_t offset, key_size, value_size, stamp_size, size
        cdef Py_ssize_t number
        cdef list odd = []
        cursor.at = <const uint8_t *>PyBytes_AS_STRING(data)
        cursor.end = stop = cursor.at + PyBytes_GET_SIZE(data)
        if records > PyBytes_GET_SIZE(data):  # limits the allocation: a record has several bytes
            raise ValueError("a batch has fewer bytes than records")
        self.reserve(records)
        for number in range(records):
            cursor.end = stop
            size = cursor.varint()
            if size < 0 or size > stop - cursor.at:
                raise ValueError("a record is longer than its batch")
            cursor.end = cursor.at + size
            cursor.skip(1)
            cursor.varint()
            offset = base + cursor.varint()
            if offset >= first and offset < end:
                key_size = cursor.varint()
                key = cursor.skip(key_size)
                value_size = cursor.varint()
                value = cursor.skip(value_size)
                stamp_size = -1
                stamp = value
                if cursor.varint() > 0:
                    cursor.skip(cursor.varint())
                    stamp_size = cursor.varint()
                    stamp = cursor.skip(stamp_size)
                if not self.add(offset, key, max(key_size, 0), value, value_size, stamp, stamp_size):
                    odd.append(
                        (
                            offset,
                            PyBytes_FromStringAndSize(<const char *>key, max(key_size, 0)),
                            None if value_size < 0 else PyBytes_FromStringAndSize(<const char *>value, value_size),
                            None if stamp_size < 0 else PyBytes_FromStringAndSize(<const char *>stamp, stamp_size),
                        )
                    )
            cursor.at = cursor.end
        if cursor.at != stop:
            raise ValueError("a batch has more than its records")
        return odd

    def columns(self):
        """Return the columns ids, contents, positions, seqs, offsets, live as bytes, in native byte order."""
        cdef Py_ssize_t number
        cdef bytes ids = PyBytes_FromStringAndSize(NULL, 8 * self.count)
        cdef bytes contents = PyBytes_FromStringAndSize(NULL, 8 * self.count)
        cdef bytes positions = PyBytes_FromStringAndSize(NULL, 8 * self.count)
        cdef bytes seqs = PyBytes_FromStringAndSize(NULL, 4 * self.count)
        cdef bytes offsets = PyBytes_FromStringAndSize(NULL, 8 * self.count)
        cdef bytes live = PyBytes_FromStringAndSize(NULL, self.count)
        for number in range(self.count):
            (<uint64_t *>PyBytes_AS_STRING(ids))[number] = self.rows[number].id
            (<uint64_t *>PyBytes_AS_STRING(contents))[number] = self.rows[number].content
            (<uint64_t *>PyBytes_AS_STRING(positions))[number] = self.rows[number].position
            (<uint32_t *>PyBytes_AS_STRING(seqs))[number] = self.rows[number].seq
            (<int64_t *>PyBytes_AS_STRING(offsets))[number] = self.rows[number].offset
            (<uint8_t *>PyBytes_AS_STRING(live))[number] = self.rows[number].live
        return ids, contents, positions, seqs, offsets, live

    def clear(self):
        self.count = 0

    cdef int reserve(self, Py_ssize_t more) except -1:
        cdef Row *rows
        if self.count + more > self.room:
            rows = <Row *>realloc(self.rows, (self.count + more) * 2 * sizeof(Row))
            if rows == NULL:
                raise MemoryError
            self.rows, self.room = rows, (self.count + more) * 2
        return 0

    cdef bint add(
        self,
        int64_t offset,
        const uint8_t *key,
        int64_t key_size,
        const uint8_t *value,
        int64_t value_size,
        const uint8_t *stamp,
        int64_t stamp_size,
    ) noexcept:
        """Add one record and return True, or return False if it is not a plain event."""
        cdef Row *row = &self.rows[self.count]
        cdef int64_t row_size = 0
        if key_size >= MARKER_BYTES and memcmp(key, MARKER, MARKER_BYTES) == 0:
            return False
        if self.by_id:
            if not self.narrow(&key, &key_size):
                return False
        if value_size >= 0:
            if value_size < HEAD_BYTES or memcmp(value, HEAD, HEAD_BYTES) != 0:
                return False
            row_size = row_bytes(value + HEAD_BYTES, value_size - HEAD_BYTES)
            value += HEAD_BYTES
            if row_size < 0:
                return False
            if row_size == 4 and memcmp(value, <const char *>b"null", 4) == 0:
                value_size = -1
            elif not self.exact:
                return False
        row.id = xxh64(key, key_size, self.seed)
        row.content = xxh64(value, row_size if value_size >= 0 else 0, self.seed)
        row.live = value_size >= 0
        row.offset = offset
        row.position = row.seq = 0
        if stamp_size == STAMP_BYTES:
            row.position = digits(stamp, STAMP_DIGITS)
            row.seq = <uint32_t>digits(stamp + STAMP_DIGITS + 1, STAMP_BYTES - STAMP_DIGITS - 1)
        self.count += 1
        return True

    cdef bint narrow(self, const uint8_t **key, int64_t *size) noexcept:
        """Narrow a key of the form `{"name":digits}` to its digits. Return False for any other key."""
        cdef const uint8_t *end
        cdef const uint8_t *at
        if not self.one_column or size[0] < 4:
            return False
        end = at = key[0] + size[0] - 1
        while at > key[0] and (at - 1)[0] >= c"0" and (at - 1)[0] <= c"9":
            at -= 1
        if at == end or end - at > MOST_ID_DIGITS or at - key[0] < 2 or memcmp(at - 2, <const char *>b'":', 2) != 0:
            return False
        key[0], size[0] = at, end - at
        return True


cdef int64_t row_bytes(const uint8_t *value, int64_t size) noexcept:
    """Return the length of the row at the start of `value`, or -1 if its end is not found.

    The row ends where the event's source member begins. No text within a row can match that, since the quotes in a text
    are escaped.
    """
    cdef const uint8_t *at = value
    cdef const uint8_t *end = value + size - SOURCE_BYTES
    while at <= end:
        at = <const uint8_t *>memchr(at, c",", end - at + 1)
        if at == NULL:
            return -1
        if memcmp(at, SOURCE, SOURCE_BYTES) == 0:
            return at - value
        at += 1
    return -1


cdef uint64_t digits(const uint8_t *at, int count) noexcept:
    """Parse hexadecimal digits. Any other character counts as 0."""
    cdef uint64_t value = 0
    cdef int number
    for number in range(count):
        value <<= 4
        if at[number] >= c"0" and at[number] <= c"9":
            value |= at[number] - c"0"
        elif at[number] >= c"a" and at[number] <= c"f":
            value |= at[number] - c"a" + 10
    return value
