# cython: language_level=3
"""Declarations of `native_json` that `native_rows` uses."""

from libc.stdint cimport uint64_t

from cython cimport final


cdef struct Value:
    const char *text
    Py_ssize_t length  # or NULL_LENGTH
    # Offset and size of the encoded value in the output buffer. An equal value is copied from there.
    Py_ssize_t at
    Py_ssize_t size


cdef struct Field:
    int index
    const char *before  # the JSON that precedes its value
    Py_ssize_t before_size


cdef enum:
    NULL_LENGTH = -1


@final
cdef class Buffer:
    cdef char *data
    cdef Py_ssize_t size
    cdef Py_ssize_t room
    cdef char *reserve(self, Py_ssize_t more) except NULL
    cdef int grow(self, Py_ssize_t needed) except -1
    cdef int clear(self) except -1
    cdef bytes as_bytes(self)
    cdef int put(self, const char *data, Py_ssize_t length) except -1
    cdef int put_bytes(self, bytes data) except -1
    cdef int put_number(self, uint64_t number) except -1
    cdef int put_quoted(self, const char *text, Py_ssize_t length) except -1
    cdef int put_text(self, const char *text, Py_ssize_t length) except -1


cdef class Columns:
    cdef int count
    cdef int *ways
    cdef int *digits
    cdef Value *values
    cdef Field *row
    cdef Field *key
    cdef int row_count
    cdef int key_count
    cdef list encoders
    cdef list kept
    cdef Buffer key_out
    cdef int fill(self, Field *fields, list members) except -1
    cdef int put_row(self, Buffer out, Value *values, Value *known) except -1
    cdef int put_key(self) except -1
    cdef int put_value(self, Buffer out, int index, Value *value) except -1
